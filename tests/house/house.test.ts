import { readdirSync, readFileSync } from 'node:fs'
import { join } from 'node:path'
import { KNOWN_SCHEMA } from '@holdfast/host'
import { expectedVersion } from '@holdfast/schema'
import { expect, test } from 'vitest'

const root = join(import.meta.dirname, '../..')
const read = (file: string): string => readFileSync(join(root, file), 'utf8')

/** The repository's own files. Not asked of git: the tests also run where there is none, or where it distrusts the folder's owner. */
function* filesBelow(folder: string): Generator<string> {
  for (const entry of readdirSync(join(root, folder), { withFileTypes: true })) {
    const file = folder === '' ? entry.name : `${folder}/${entry.name}`
    if (entry.isDirectory() && !/^(node_modules|dist|out|coverage|\.git|\.turbo|\.holdfast)$/.test(entry.name)) yield* filesBelow(file)
    else if (entry.isFile()) yield file
  }
}
const files = [...filesBelow('')]

const EXACT = /^\d+\.\d+\.\d+(-[\w.]+)?$/

test('every version is pinned exactly', () => {
  const catalog = /^catalog:\n((?: {2}.*\n)+)/m.exec(read('pnpm-workspace.yaml'))?.[1] ?? ''
  const versions = catalog
    .trim()
    .split('\n')
    .map((line) => line.split(': ')[1])
  expect(versions.length).toBeGreaterThan(20)
  for (const version of versions) expect(version).toMatch(EXACT)
  const toolchain = JSON.parse(read('tools/toolchain/package.json')) as Record<
    'dependencies' | 'optionalDependencies',
    Record<string, string>
  >
  for (const version of Object.values({ ...toolchain.dependencies, ...toolchain.optionalDependencies })) expect(version).toMatch(EXACT)
})

test('both lockfiles are there and say what to take, not where from: any registry or mirror will do', () => {
  for (const file of ['pnpm-lock.yaml', 'tools/toolchain/package-lock.json']) {
    const text = read(file)
    expect(text.match(/integrity/g)?.length, file).toBeGreaterThan(5)
    expect(text, file).not.toMatch(/"resolved"|tarball:/)
  }
})

test('every package is private, Apache-2.0, and takes its versions from the catalog', () => {
  const manifests = files.filter((file) =>
    /^(package\.json|(packages|apps)\/[^/]+\/package\.json|(tests|examples)\/package\.json)$/.test(file),
  )
  expect(manifests.length).toBeGreaterThan(10)
  for (const file of manifests) {
    const manifest = JSON.parse(read(file)) as {
      private?: boolean
      license?: string
      dependencies?: Record<string, string>
      devDependencies?: Record<string, string>
      optionalDependencies?: Record<string, string>
    }
    expect({ file, private: manifest.private, license: manifest.license }).toEqual({ file, private: true, license: 'Apache-2.0' })
    for (const version of Object.values({ ...manifest.dependencies, ...manifest.devDependencies, ...manifest.optionalDependencies }))
      expect(version).toMatch(/^(catalog:|workspace:\*)$/)
  }
})

test('no file names the host of a registry', () => {
  // Built from parts, so that this file does not.
  const hosts = [
    ['registry', 'npmjs', 'org'],
    ['registry', 'yarnpkg', 'com'],
    ['deb', 'debian', 'org'],
  ].map((parts) => parts.join('.'))
  const found = files.filter((file) => hosts.some((host) => read(file).includes(host)))
  expect(found).toEqual([])
})

test('the licence is the whole of Apache-2.0', () => {
  const text = read('LICENSE')
  for (const part of ['Apache License', 'Version 2.0, January 2004', 'END OF TERMS AND CONDITIONS', 'Copyright 2026 The Holdfast authors'])
    expect(text).toContain(part)
  expect(text.split('\n').length).toBeGreaterThan(195)
})

test('the schema that the code knows is the newest migration', async () => {
  expect(KNOWN_SCHEMA).toBe(await expectedVersion(join(root, 'migrations')))
})
