import { randomUUID } from 'node:crypto'
import { DatabaseRoles, type Db, engineSessionSettings, type Role } from '@holdfast/schema'
import pg from 'pg'
import { inject } from 'vitest'
import { connectCounted } from './count-statements.ts'

declare module 'vitest' {
  export interface ProvidedContext {
    /** As superuser, to a maintenance database. */
    postgresUrl: string
    postgresTemplate: string
  }
}

export interface TestDatabase extends AsyncDisposable {
  readonly url: string
  /** As superuser, with the engine's session settings; 4 connections. */
  readonly db: Db
  /** As an app connects: its role, its grants, its settings; 2 connections unless told otherwise. Closed with the database. */
  connectAs(role: Role, options?: { readonly max?: number }): Db
}

export interface TestDatabaseOptions {
  /** Without our schema, for tests of the migrator. Default false. */
  readonly empty?: boolean
}

/** A database of one's own, copied from the migrated template in some 20 ms; dropped when it is disposed of. */
export async function testDatabase({ empty = false }: TestDatabaseOptions = {}): Promise<TestDatabase> {
  const adminUrl = inject('postgresUrl')
  const name = `test_${randomUUID().replaceAll('-', '')}`
  await admin(adminUrl, `CREATE DATABASE ${name} TEMPLATE ${empty ? 'template1' : inject('postgresTemplate')} STRATEGY file_copy`)
  const url = Object.assign(new URL(adminUrl), { pathname: `/${name}` }).href
  const db = connectCounted({ connectionString: url, max: 4, settings: engineSessionSettings })
  const others: Db[] = []
  return {
    url,
    db,
    connectAs(role, { max = 2 } = {}) {
      const other = connectCounted({ connectionString: url, max, role: DatabaseRoles[role], settings: engineSessionSettings })
      others.push(other)
      return other
    },
    async [Symbol.asyncDispose]() {
      await Promise.all([db, ...others].map((open) => open.destroy()))
      await admin(adminUrl, `DROP DATABASE ${name} WITH (FORCE)`)
    },
  }
}

async function admin(connectionString: string, text: string): Promise<void> {
  const client = new pg.Client({ connectionString })
  await client.connect()
  try {
    await client.query(text)
  } finally {
    await client.end()
  }
}
