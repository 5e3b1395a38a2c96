// Who may import whom. A package imports only packages of a lower rank; equal ranks do not know each other.

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
  /** What users test their machines with, the examples too; our own packages use the testbed below. */
  testing: 5,
  cli: 6,
}
const APP_RANK = 6
/** Below everything that depends on it for tests, or the packages would form a ring. It never runs in production. */
const TESTBED_RANK = 2
/** The first rank in which Nest appears. */
export const NEST_RANK = 5

/** Where a file belongs: `packages/engine`, `apps/api`, or the top-level folder. */
export const homeOf = (file: string): string => {
  const [top = '', second = ''] = file.split('/')
  return top === 'packages' || top === 'apps' ? `${top}/${second}` : top
}

/** The rank of a home; undefined for what stands outside: tests, tools, and a package that nobody gave a rank. */
export function rankOf(home: string): number | undefined {
  const [top = '', name = ''] = home.split('/')
  if (top === 'apps' || home === 'examples') return APP_RANK
  if (top !== 'packages') return undefined
  return name === 'testbed' ? TESTBED_RANK : RANKS[name]
}

/** `@holdfast/engine` → `packages/engine`. */
export const homeOfPackage = (name: string): string =>
  name === 'examples' || name === 'tests' ? name : name in RANKS || name === 'testbed' ? `packages/${name}` : `apps/${name}`

export interface Edge {
  readonly from: string
  readonly to: string
  readonly by: 'source' | 'test' | 'dependency' | 'devDependency'
}

/** Why `from` must not use `to`; undefined where it may. */
export function edgeProblem({ from, to, by }: Edge): string | undefined {
  const [fromRank, toRank] = [rankOf(from), rankOf(to)]
  if (fromRank === undefined || from === to) return undefined // tests and tools use everything; a missing rank is reported once, at its manifest
  if (to.startsWith('apps/')) return 'nothing imports an app: apps meet in PostgreSQL'
  if (to === 'packages/testbed' && from !== 'examples' && from !== 'packages/testing') {
    if (by === 'source' || by === 'dependency') return 'only tests import @holdfast/testbed'
    const ring = by === 'devDependency' && fromRank < TESTBED_RANK // its tests find it from the root, which depends on both
    return ring ? `@holdfast/testbed depends on ${from}: turbo refuses the ring` : undefined
  }
  if (toRank === undefined) return `${to} is no package that may be imported`
  if (toRank >= fromRank) return `${from} has rank ${fromRank} and ${to} has rank ${toRank}: imports point down only`
  return undefined
}
