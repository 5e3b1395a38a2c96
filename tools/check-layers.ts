// Who may import whom, and what may be said where. A check of our own, because it has to know our ranks, and must fail when it has looked at nothing.
import { existsSync, readdirSync, readFileSync } from 'node:fs'
import { dirname, join, relative, sep } from 'node:path'

/** A package imports only packages of a lower rank. `testing`, `tests`, `examples` and `tools` stand outside: they may use everything. */
const RANKS: Readonly<Record<string, number>> = {
  contracts: 0,
  schema: 1,
  queries: 2,
  invariants: 3,
  engine: 4,
  memory: 4,
  ledger: 4,
  client: 4,
  host: 5,
  cli: 6,
}
const APP_RANK = 6
const NEST_RANK = 5
const SQL_AT_HOME = new Set(['packages/queries', 'packages/invariants', 'packages/schema', 'packages/testing'])
const SAYS_NOTHING = /^(utils?|helpers?|common|misc|shared|manager)(\.|$)/

export interface LayerViolation {
  readonly file: string
  readonly line: number
  readonly rule: string
  readonly remedy: string
}

interface Source {
  /** Path from the root, with slashes. */
  readonly file: string
  readonly text: string
  /** `packages/engine`, `apps/api`, `tests`, … */
  readonly home: string
}

/** Everything that breaks a rule below `root`. Throws when there is nothing to look at, since an empty search finds no fault either. */
export function findLayerViolations(root: string): LayerViolation[] {
  const sources = [...sourcesBelow(root)]
  if (sources.length === 0) throw new Error(`no source file found below ${root}: the layer check has looked at nothing`)
  return [...manifestViolations(root), ...sources.flatMap((source) => sourceViolations(root, source))]
}

function* sourcesBelow(root: string): Generator<Source> {
  for (const top of ['packages', 'apps', 'tests', 'tools', 'examples']) {
    if (!existsSync(join(root, top))) continue
    for (const entry of readdirSync(join(root, top), { recursive: true, withFileTypes: true })) {
      const file = relative(root, join(entry.parentPath, entry.name)).split(sep).join('/')
      if (!entry.isFile() || !/\.(ts|mts|mjs)$/.test(entry.name) || /(^|\/)(node_modules|dist)\//.test(file)) continue
      const [, second] = file.split('/')
      yield { file, text: readFileSync(join(root, file), 'utf8'), home: top === 'packages' || top === 'apps' ? `${top}/${second}` : top }
    }
  }
}

function rankOf(home: string): number | undefined {
  const [top, name = ''] = home.split('/')
  return top === 'apps' ? APP_RANK : top === 'packages' ? RANKS[name] : undefined
}
const homeOf = (name: string): string =>
  name in RANKS || name === 'testing' ? `packages/${name}` : name === 'examples' || name === 'tests' ? name : `apps/${name}`

function edgeProblem(from: string, to: string, inTest: boolean): string | undefined {
  const [fromRank, toRank] = [rankOf(from), rankOf(to)]
  if (fromRank === undefined || from === to) return undefined
  if (to === 'packages/testing') return inTest ? undefined : 'only tests import @holdfast/testing'
  if (to.startsWith('apps/')) return 'nothing imports an app: apps meet in PostgreSQL'
  if (toRank === undefined) return `${to} is no package that may be imported`
  if (toRank >= fromRank && !inTest) return `${from} has rank ${fromRank} and ${to} has rank ${toRank}: imports point down only`
  return undefined
}

function manifestViolations(root: string): LayerViolation[] {
  return ['packages', 'apps'].flatMap((top) => {
    if (!existsSync(join(root, top))) return []
    return readdirSync(join(root, top)).flatMap((name) => {
      const file = `${top}/${name}/package.json`
      if (!existsSync(join(root, file))) return []
      const text = readFileSync(join(root, file), 'utf8')
      const { dependencies = {} } = JSON.parse(text) as { dependencies?: Record<string, string> }
      return Object.keys(dependencies).flatMap((dependency) => {
        const [, other] = /^@holdfast\/(.+)$/.exec(dependency) ?? []
        const problem = other === undefined ? undefined : edgeProblem(`${top}/${name}`, homeOf(other), false)
        const line = text.split('\n').findIndex((each) => each.includes(`"${dependency}"`)) + 1
        return problem === undefined
          ? []
          : [{ file, line, rule: problem, remedy: `remove ${dependency}, or move what is needed to a lower rank` }]
      })
    })
  })
}

function sourceViolations(root: string, { file, text, home }: Source): LayerViolation[] {
  const found: LayerViolation[] = []
  const inTest = /\/test\//.test(file) || file.endsWith('.test.ts') || file.endsWith('.test-d.ts')
  const rank = rankOf(home)
  const name = file.split('/').find((part) => SAYS_NOTHING.test(part))
  if (name !== undefined) found.push({ file, line: 1, rule: `the name ${name} says nothing`, remedy: 'name it for its one purpose' })
  for (const [index, line] of text.split('\n').entries()) {
    const at = (rule: string, remedy: string): void => void found.push({ file, line: index + 1, rule, remedy })
    const [, specifier] = /(?:from|import)\s*\(?\s*['"]([^'"]+)['"]/.exec(line) ?? []
    if (specifier !== undefined && !/^\s*(\*|\/\/)/.test(line)) {
      const [, other, subpath] = /^@holdfast\/([^/]+)(\/.+)?$/.exec(specifier) ?? []
      if (other !== undefined) {
        const problem = edgeProblem(home, homeOf(other), inTest)
        if (problem !== undefined) at(problem, `do not import ${specifier} here; move what is needed to a lower rank`)
        if (subpath !== undefined && !isExported(root, other, subpath))
          at(`${specifier} is not exported by @holdfast/${other}`, 'import what its index exports, or export it there')
      }
      if (rank !== undefined && rank < NEST_RANK && specifier.startsWith('@nestjs/'))
        at('Nest appears first in packages/host', 'keep the framework out of the domains')
      if (!inTest && specifier.startsWith('.') && leaves(file, specifier, home))
        at(`${specifier} leaves ${home}`, 'import the other package by its name')
    }
    if (rank !== undefined && !inTest && /\bprocess\.env\b/.test(line) && !file.endsWith('/env.ts') && !isComment(line)) {
      at('the environment is read in env.ts only', 'parse it there and hand the value on')
    }
    const speaksSql =
      /(?<![\w.])sql(?:\.raw)?(?:<[^`]*>)?`/.test(line) || /['"`]\s*(?:SELECT|INSERT INTO|UPDATE|DELETE FROM)\s+\S+/.test(line)
    if (rank !== undefined && !inTest && !SQL_AT_HOME.has(home) && speaksSql && !isComment(line)) {
      at('SQL stands in packages/queries', 'write a statement there, named by its verb, and call it')
    }
  }
  return found
}

const isComment = (line: string): boolean => /^\s*(\*|\/\/|\/\*)/.test(line)

function leaves(file: string, specifier: string, home: string): boolean {
  if (rankOf(home) === undefined) return false
  const target = join(dirname(file), specifier).split(sep).join('/')
  return !target.startsWith(`${home}/`)
}

function isExported(root: string, name: string, subpath: string): boolean {
  const manifest = join(root, homeOf(name), 'package.json')
  if (!existsSync(manifest)) return false
  const { exports = {} } = JSON.parse(readFileSync(manifest, 'utf8')) as { exports?: Record<string, unknown> }
  return `.${subpath}` in exports
}

if (import.meta.main) {
  const violations = findLayerViolations(join(import.meta.dirname, '..'))
  for (const { file, line, rule, remedy } of violations) process.stderr.write(`${file}:${line}  ${rule}: ${remedy}\n`)
  process.exitCode = violations.length > 0 ? 1 : 0
}
