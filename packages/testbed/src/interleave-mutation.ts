import type { Db } from '@holdfast/schema'
import { CompiledQuery } from 'kysely'

/** A replacement that found nothing: the statement is not the one that its test believes in. It ends a run; it is never taken for a lost race. */
export class MutationError extends Error {
  override readonly name = 'MutationError'
}

export type Replacement = readonly [from: string | RegExp, to: string]

/** `text` without each place where `pattern` is found. Throws `MutationError` when there is none. */
export const withoutText = (text: string, pattern: string | RegExp): string => withReplaced(text, [pattern, ''])

type Executor = Pick<Db, 'executeQuery'>

interface Compilable<Params> {
  compile(params: Params): { readonly sql: string; readonly parameters: readonly unknown[] }
  readonly sample?: Params
}

/**
 * A statement with parts of its text replaced (each place where `from` is found), to show that a race test fails without them. Throws `MutationError`
 * when `from` is nowhere: at once for a statement that has a sample of its parameters, otherwise when it is called.
 *
 * A parameter that the change leaves unused has no type any more (42P18): keep it, as in `true OR $3::text IS NULL`.
 */
export function mutated<Params, Row>(
  statement: Compilable<Params> & ((db: Db, params: Params) => Promise<Row[]>),
  ...replacements: readonly Replacement[]
): (db: Executor, params: Params) => Promise<Row[]> {
  const change = (text: string): string => replacements.reduce(withReplaced, text)
  if (statement.sample !== undefined) change(statement.compile(statement.sample).sql)
  return async (db, params) => {
    const { sql, parameters } = statement.compile(params)
    // Without its head it is not prepared under the statement's name.
    const text = change(sql).replace(/^\/\* \S+ \*\//, '')
    return (await db.executeQuery<Row>(CompiledQuery.raw(text, [...parameters]))).rows
  }
}

function withReplaced(text: string, [from, to]: Replacement): string {
  const every = typeof from === 'string' || from.global ? from : new RegExp(from, `${from.flags}g`)
  // As functions: `$1` in a text is a parameter of the statement and no group of the pattern.
  const changed = text.replaceAll(every, () => to)
  if (changed === text)
    throw new MutationError(`${from instanceof RegExp ? from : JSON.stringify(from)} changes nothing in the statement:\n${text}`)
  return changed
}
