import type { Db } from '@holdfast/schema'
import { sql } from 'kysely'
import { movedColumns } from './time-columns.ts'

/**
 * Lets so much time pass: everything that the database knows of a time becomes that much older, in one statement. The clocks of the database and of this process go
 * on as they are, so whatever is written from now on is later than all of it.
 */
export async function letPass(db: Db, ms: number): Promise<void> {
  if (ms <= 0) return
  const moves = Object.entries(movedColumns).map(([table, columns]) => {
    const changes = columns.map((column) => sql`${sql.ref(column)} = ${sql.ref(column)} - ${ms}::bigint * interval '1 millisecond'`)
    return sql`${sql.ref(`older_${table}`)} AS (UPDATE holdfast.${sql.ref(table)} SET ${sql.join(changes)})`
  })
  await sql`WITH ${sql.join(moves)} SELECT`.execute(db)
}
