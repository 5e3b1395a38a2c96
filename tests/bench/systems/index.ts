import { FAMILIES, type Family, type System } from './system.ts'

export interface SystemOptions {
  /** The SQL that `absurdctl` brings: its package on npm does not hold it. */
  readonly absurdSql?: string | undefined
}

/** Loaded one by one: the process of a worker holds the code of its own system and of no other. */
const LOADERS: Readonly<Record<Family, (options: SystemOptions) => Promise<readonly System[] | string>>> = {
  raw: async () => [(await import('./raw-sql.ts')).rawSql],
  holdfast: async () => (await import('./holdfast.ts')).holdfastSystems,
  graphile: async () => [(await import('./graphile-worker.ts')).graphileWorker],
  pgboss: async () => [(await import('./pg-boss.ts')).pgBoss],
  dbos: async () => [(await import('./dbos.ts')).dbos],
  absurd: async ({ absurdSql }) =>
    absurdSql === undefined
      ? 'its SQL schema is not part of its npm package; get it with absurdctl and name it with --absurd-sql FILE'
      : [(await import('./absurd.ts')).absurdWith(absurdSql)],
}

/** The systems of a family, or why it cannot be measured. */
export const loadFamily = (family: Family, options: SystemOptions): Promise<readonly System[] | string> => LOADERS[family](options)

export async function findSystem(family: string, name: string, options: SystemOptions): Promise<System> {
  if (!isFamily(family)) throw new Error(`there is no family of systems named ${family}; there are ${FAMILIES.join(', ')}`)
  const found = await loadFamily(family, options)
  if (typeof found === 'string') throw new Error(`${family} cannot be measured: ${found}`)
  const system = found.find((each) => each.name === name)
  if (system === undefined) throw new Error(`there is no system named ${name} in ${family}`)
  return system
}

const isFamily = (name: string): name is Family => (FAMILIES as readonly string[]).includes(name)
