import { readFileSync } from 'node:fs'
import { join } from 'node:path'
import { expect, test } from 'vitest'

const root = join(import.meta.dirname, '../..')
const page = readFileSync(join(root, 'docs/races.md'), 'utf8')
const rows = [...page.matchAll(/^\| ([RN]\d+) \| (.+?) \| (.+?) \| (.+) \|$/gm)].map(([, number = '', , , tests = '']) => ({
  number,
  tests: tests.split('<br>').map((cited) => {
    const [, file = '', name = ''] = /^`([^`]+)` › (.+)$/.exec(cited) ?? []
    return { file, name }
  }),
}))

/** As a title stands in a source: quotes in it may be escaped there. */
const isTitleIn = (file: string, name: string): boolean => {
  const source = readFileSync(join(root, file), 'utf8')
  return ["'", '"', '`'].some((quote) => source.includes(`${quote}${name.replaceAll(quote, `\\${quote}`)}${quote}`))
}

test('races.md has every number, in order and once', () => {
  const numbers = (letter: string, last: number) => Array.from({ length: last }, (_, at) => `${letter}${at + 1}`)
  expect(rows.map(({ number }) => number)).toEqual([...numbers('R', 29), ...numbers('N', 25)])
})

test('each race has a test that is named after it, and the test exists', () => {
  for (const { number, tests } of rows) {
    expect(tests.length).toBeGreaterThan(0)
    for (const { file, name } of tests) {
      expect(name.match(/\b[RN]\d+\b/g) ?? [], `${name} in ${file} is cited for ${number}`).toContain(number)
      expect(isTitleIn(file, name), `${file} has no test “${name}”`).toBe(true)
    }
  }
})

test('what is cited outside of the table exists', () => {
  const rest = page.slice(page.indexOf('## Beside the list')).replaceAll(/\n {2}/g, ' ')
  const cited = [...rest.matchAll(/`([\w/.-]+\.test\.ts)`(?: › ([^`\n]+?))?(?=,? *(?:$|`))/gm)]
  expect(cited.length).toBeGreaterThan(5)
  for (const [, file = '', name] of cited) expect(name === undefined || isTitleIn(file, name), `${file} › ${name}`).toBe(true)
})
