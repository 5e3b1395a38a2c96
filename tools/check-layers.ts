// Who may import whom, and what may be said where. A check of our own, because it has to know our ranks, and must fail when it has looked at nothing.
import { existsSync, readdirSync, readFileSync } from 'node:fs'
import { posix } from 'node:path'
import { type Edge, edgeProblem, homeOf, homeOfPackage, NEST_RANK, rankOf } from './layer-ranks.ts'
import { isTask, root as repository } from './run.ts'
import { factsOf } from './source-facts.ts'

/** The migrator and the test kits speak SQL; tools and tests do as well, and are not looked at for it. */
const SQL_AT_HOME = new Set(['packages/queries', 'packages/invariants', 'packages/schema', 'packages/testbed', 'packages/testing'])
const SAYS_NOTHING = new Set(['util', 'utils', 'helper', 'helpers', 'common', 'misc', 'shared', 'manager', 'managers'])
const TOPS = ['packages', 'apps', 'examples', 'tests', 'tools', 'infra', 'migrations', 'docs']
const NOT_OURS = new Set(['node_modules', 'dist', 'out', 'coverage', '.turbo'])

export interface LayerViolation {
  /** Relative to the root, with slashes. */
  readonly file: string
  readonly line: number
  readonly rule: string
  readonly remedy: string
}

/** Everything that breaks a rule below `root`. Throws when there is nothing to look at, since an empty search finds no fault either. */
export function findLayerViolations(root: string): LayerViolation[] {
  const files = TOPS.flatMap((top) => [...filesBelow(root, top)])
  const sources = files.filter((file) => /\.[cm]?tsx?$|\.[cm]?jsx?$/.test(file))
  if (sources.length === 0) throw new Error(`no source file found below ${root}: the layer check has looked at nothing`)
  return [
    ...nameViolations(files),
    ...files.filter((file) => file.endsWith('/package.json')).flatMap((file) => manifestViolations(root, file)),
    ...sources.flatMap((file) => sourceViolations(root, file)),
  ]
}

function* filesBelow(root: string, folder: string): Generator<string> {
  if (!existsSync(posix.join(root, folder))) return
  for (const entry of readdirSync(posix.join(root, folder), { withFileTypes: true })) {
    const path = `${folder}/${entry.name}`
    if (entry.isDirectory() && !NOT_OURS.has(entry.name)) yield* filesBelow(root, path)
    else if (entry.isFile()) yield path
  }
}

/** A folder is told of once, at the first file in it. */
function nameViolations(files: readonly string[]): LayerViolation[] {
  const found = new Map<string, LayerViolation>()
  for (const file of files) {
    const parts = file.split('/')
    for (const [index, part] of parts.entries()) {
      const word = part.split(/[-_.]/).find((each) => SAYS_NOTHING.has(each.toLowerCase()))
      const path = parts.slice(0, index + 1).join('/')
      if (word === undefined || found.has(path)) continue
      found.set(path, { file, line: 1, rule: `the name ${part} says nothing (${word})`, remedy: 'name it for its one purpose' })
    }
  }
  return [...found.values()]
}

interface Manifest {
  readonly dependencies?: Record<string, string>
  readonly optionalDependencies?: Record<string, string>
  readonly peerDependencies?: Record<string, string>
  readonly devDependencies?: Record<string, string>
  readonly exports?: Record<string, unknown>
}
const readManifest = (root: string, file: string): Manifest => JSON.parse(readFileSync(posix.join(root, file), 'utf8')) as Manifest

function manifestViolations(root: string, file: string): LayerViolation[] {
  const home = homeOf(file)
  const rank = rankOf(home)
  if (rank === undefined) {
    if (!home.startsWith('packages/')) return []
    return [{ file, line: 1, rule: `${home} has no rank`, remedy: 'give it one in tools/layer-ranks.ts, as ARCHITECTURE.md draws it' }]
  }
  const lines = readFileSync(posix.join(root, file), 'utf8').split('\n')
  const { dependencies, optionalDependencies, peerDependencies, devDependencies } = readManifest(root, file)
  const problems = (names: object | undefined, by: Edge['by']): LayerViolation[] =>
    Object.keys(names ?? {}).flatMap((dependency) => {
      const rule = importProblem(home, dependency, by)
      const line = lines.findIndex((each) => each.includes(`"${dependency}"`)) + 1
      return rule === undefined ? [] : [{ file, line, rule, remedy: `remove ${dependency}, or move what is needed to a lower rank` }]
    })
  return [
    ...problems({ ...dependencies, ...optionalDependencies, ...peerDependencies }, 'dependency'),
    ...problems(devDependencies, 'devDependency'),
  ]
}

/** What is wrong with `home` using the package of `specifier`; its subpath is another matter. */
function importProblem(home: string, specifier: string, by: Edge['by']): string | undefined {
  const [, ours] = /^@holdfast\/([^/]+)/.exec(specifier) ?? []
  if (ours !== undefined) return edgeProblem({ from: home, to: homeOfPackage(ours), by })
  const rank = rankOf(home)
  if (specifier.startsWith('@nestjs/') && rank !== undefined && rank < NEST_RANK) return 'Nest appears first in packages/host'
  const words = /^(zod|\.{1,2}\/.*)$/.test(specifier) || by === 'test' || by === 'devDependency'
  if (home === 'packages/contracts' && !words) return 'contracts is words only: no I/O, and no library but zod'
  return undefined
}

function sourceViolations(root: string, file: string): LayerViolation[] {
  const home = homeOf(file)
  const inTest = /\/test\//.test(file) || /\.(test|test-d)\.ts$/.test(file)
  const facts = factsOf(file, readFileSync(posix.join(root, file), 'utf8'))
  const found: LayerViolation[] = []
  const at = (line: number, rule: string, remedy: string): void => void found.push({ file, line, rule, remedy })

  for (const { specifier, line } of facts.imports) {
    const problem = importProblem(home, specifier, inTest ? 'test' : 'source')
    if (problem !== undefined) at(line, problem, `do not import ${specifier} here; move what is needed to a lower rank`)
    const [, ours, subpath] = /^@holdfast\/([^/]+)(\/.+)?$/.exec(specifier) ?? []
    if (ours !== undefined && subpath !== undefined && !isExported(root, ours, subpath))
      at(line, `${specifier} is not exported by @holdfast/${ours}`, 'import what its index exports, or export it there')
    if (specifier.startsWith('.') && leaves(file, specifier, inTest))
      at(line, `${specifier} leaves ${home}`, 'import the other package by its name')
  }
  // Tests and tools stand outside of the ranks; a config file is a tool.
  if (rankOf(home) === undefined || inTest || /\.config\.[cm]?[jt]s$/.test(file)) return found
  if (posix.basename(file) !== 'env.ts')
    for (const line of facts.environmentReads) at(line, 'the environment is read in env.ts only', 'parse it there and hand the value on')
  if (!SQL_AT_HOME.has(home))
    for (const line of facts.sql) at(line, 'SQL stands in packages/queries', 'write a statement there, named by its verb, and call it')
  return found
}

/** A path out of a package; tests and tools may take one to each other, never into a package or an app. */
function leaves(file: string, specifier: string, inTest: boolean): boolean {
  const [from, to] = [homeOf(file), homeOf(posix.join(posix.dirname(file), specifier))]
  if (from === to) return false
  return (rankOf(from) !== undefined && !inTest) || to.startsWith('packages/') || to.startsWith('apps/')
}

function isExported(root: string, name: string, subpath: string): boolean {
  const manifest = `${homeOfPackage(name)}/package.json`
  return existsSync(posix.join(root, manifest)) && `.${subpath}` in (readManifest(root, manifest).exports ?? {})
}

if (isTask(import.meta.filename)) {
  const violations = findLayerViolations(repository)
  for (const { file, line, rule, remedy } of violations) process.stderr.write(`${file}:${line}  ${rule}: ${remedy}\n`)
  process.exitCode = violations.length > 0 ? 1 : 0
}
