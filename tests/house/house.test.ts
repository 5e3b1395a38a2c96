import { execFileSync, spawnSync } from 'node:child_process'
import { readFileSync } from 'node:fs'
import { join } from 'node:path'
import { KNOWN_SCHEMA } from '@holdfast/host'
import { expectedVersion } from '@holdfast/schema'
import { expect, test } from 'vitest'

const root = join(import.meta.dirname, '../..')
const read = (file: string): string => readFileSync(join(root, file), 'utf8')
// What git knows and what it will be asked to: works before the first commit of a file, too.
const files = execFileSync('git', ['ls-files', '--cached', '--others', '--exclude-standard'], { cwd: root, encoding: 'utf8' })
  .trim()
  .split('\n')

test('every version is pinned exactly, and both lockfiles are there', () => {
  const catalog = /^catalog:\n((?: {2}.*\n)+)/m.exec(read('pnpm-workspace.yaml'))?.[1] ?? ''
  const versions = catalog
    .trim()
    .split('\n')
    .map((line) => line.split(': ')[1])
  expect(versions.length).toBeGreaterThan(20)
  for (const version of versions) expect(version).toMatch(/^\d+\.\d+\.\d+(-[\w.]+)?$/)
  expect(files).toContain('pnpm-lock.yaml')
  expect(files).toContain('tools/toolchain/package-lock.json')
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
    }
    expect({ file, private: manifest.private, license: manifest.license }).toEqual({ file, private: true, license: 'Apache-2.0' })
    for (const version of Object.values({ ...manifest.dependencies, ...manifest.devDependencies }))
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
  expect(read('LICENSE')).toContain('Apache License')
  expect(read('LICENSE')).toContain('END OF TERMS AND CONDITIONS')
})

test('the schema that the code knows is the newest migration', async () => {
  expect(KNOWN_SCHEMA).toBe(await expectedVersion(join(root, 'migrations')))
})

test('a task that does not exist is refused with the list of those that do', () => {
  const { status, stderr } = spawnSync(process.execPath, ['tools/bootstrap.mjs', 'strat'], { cwd: root, encoding: 'utf8' })
  expect(status).toBe(1)
  expect(stderr).toMatch(/no task named strat.*start/s)
  expect(stderr).not.toMatch(/^\s+at /m)
})
