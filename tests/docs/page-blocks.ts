import { readdirSync, readFileSync } from 'node:fs'
import { join } from 'node:path'
import { ROOT } from '../end-to-end/running-system.ts'

const PAGES: readonly string[] = [
  'README.md',
  'ARCHITECTURE.md',
  'LIMITS.md',
  ...readdirSync(join(ROOT, 'docs'), { recursive: true }).flatMap((file) => (String(file).endsWith('.md') ? [`docs/${String(file)}`] : [])),
]

export interface Block {
  readonly place: string
  readonly file: string
  /** The page with all but the block and its givens blanked out, so that the compiler speaks of the lines of the page. */
  readonly text: string
}

/** The `ts` blocks of a page, in their order. What a fragment leaves to its reader stands in a comment before it: `<!-- given: … -->`. */
export function blocksOf(page: string): Block[] {
  const blocks: Block[] = []
  let givens: [number, string][] = []
  let block: string[] | undefined
  let start = 0
  const lines = readFileSync(join(ROOT, page), 'utf8').split('\n')
  for (const [index, line] of lines.entries()) {
    if (block !== undefined) {
      if (line !== '```') block[index] = line
      else {
        for (const [at, text] of givens) block[at] = text
        const text = [...Array.from(block, (each: string | undefined) => each ?? ''), 'export {}'].join('\n')
        blocks.push({ place: `${page}:${start + 1}`, file: `${page.replaceAll(/[/.]/g, '-')}-${start + 1}.ts`, text })
        block = undefined
        givens = []
      }
      continue
    }
    const given = /^<!-- given: (.*) -->$/.exec(line)?.[1]
    if (given !== undefined) givens.push([index, given])
    else if (/^```(ts|typescript)\b/.test(line)) [block, start] = [[], index]
    else if (!line.startsWith('<!--')) givens = []
  }
  if (block !== undefined) throw new Error(`${page}:${start + 1}: the block has no end`)
  return blocks
}

/** Of all pages. */
export const allBlocks = (): Block[] => PAGES.flatMap(blocksOf)

/** For files made of blocks: in this package, so that what a block imports is found where the tests' imports are. */
export const BLOCKS_FOLDER = join(import.meta.dirname, '../.blocks')
