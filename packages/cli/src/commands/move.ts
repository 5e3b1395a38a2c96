import { HoldfastApiError } from '@holdfast/client'
import type { BulkResponse, Instance, InstanceId } from '@holdfast/contracts'
import type { Command } from 'commander'
import { table } from '../answer.ts'
import { type Api, pathOf } from '../api.ts'
import { instanceIds, wholeNumber } from '../argument.ts'
import { addCommand, type Argument, type Host } from '../command.ts'
import { ExitCodes, UsageError } from '../exit-code.ts'
import { addFilters, type FilterOptions, filterOf, type InstanceFilter } from './filter.ts'

interface MoveOptions extends FilterOptions {
  readonly reason?: string
  readonly limit?: number
  readonly all?: boolean
}

type Verb = 'cancel' | 'retry'
const MOST_AT_ONCE = 1_000

export const addCancel = (program: Command, host: Host): void =>
  addMove(program, host, 'cancel', {
    summary: 'Cancel live instances, by id or by filter',
    more: 'What executes is told by its signal and may finish its step; everything else is cancelled at once.',
    past: 'cancelled, or told to',
    examples: [`cancel 42 43 --reason 'order withdrawn'`, `cancel --machine send-email --status scheduled --all --reason 'wrong template'`],
  })

export const addRetry = (program: Command, host: Host): void =>
  addMove(program, host, 'retry', {
    summary: 'Run failed or cancelled instances again, by id or by filter',
    past: 'run again',
    examples: ['retry 42', 'retry --machine send-email --status failed --all'],
  })

interface Words {
  readonly summary: string
  readonly more?: string
  readonly past: string
  readonly examples: readonly [string, ...string[]]
}

function addMove(program: Command, host: Host, verb: Verb, { past, ...words }: Words): void {
  addCommand<MoveOptions>(program, host, {
    name: verb,
    ...words,
    configure: (command) =>
      addFilters(command.usage('<id...> [options] | <filters> [options]').argument('[ids...]', 'the instances', instanceIds))
        .option('--reason <text>', 'why, for the history')
        .option('--limit <n>', `by filter: at most so many; default ${MOST_AT_ONCE}`, wholeNumber(1, 1_000_000))
        .option('--all', `by filter: everything that matches, ${MOST_AT_ONCE} in a transaction`),
    run: async ({ session, say }, options, [given]) => {
      const ids = idsOf(given)
      const filter = filterOf(options)
      requireOne(verb, ids, filter, options)
      const api = session.api(options)
      const reason = options.reason === undefined ? {} : { reason: options.reason }
      if (ids.length > 0) return each(api, verb, ids, reason)
      const most = options.all === true ? Number.POSITIVE_INFINITY : (options.limit ?? MOST_AT_ONCE)
      const moved = await byFilter(api, verb, { filter, reason, most, say })
      return {
        document: moved,
        text: `${moved.matched} ${past}${moved.more ? '; more match: run it again, or with --all' : ''}`,
      }
    },
  })
}

// An optional variadic argument that nobody gave is undefined or empty.
const idsOf = (given: Argument): readonly string[] => (Array.isArray(given) ? (given as readonly string[]) : [])

function requireOne(verb: Verb, ids: readonly string[], filter: InstanceFilter, options: MoveOptions): void {
  const filtered = Object.keys(filter).length > 0
  if (ids.length > 0 && (filtered || options.all === true || options.limit !== undefined))
    throw new UsageError(`give ids or filters, not both: holdfast ${verb} 42 43, or holdfast ${verb} --machine checkout --status failed`)
  if (ids.length === 0 && !filtered)
    throw new UsageError(
      `say which: holdfast ${verb} 42 43, or at least one of --machine, --status, --queue, --correlation-key, --parent. Nothing is done to everything at once`,
    )
  if (options.all === true && options.limit !== undefined) throw new UsageError('give --limit or --all, not both')
}

interface Moved {
  readonly id: string
  readonly status?: string
  readonly error?: { readonly code: string; readonly message: string }
}

/** One after the other; a refusal of one does not keep the others from being moved. */
async function each(api: Api, verb: Verb, ids: readonly string[], reason: object) {
  const results: Moved[] = []
  for (const id of ids) {
    try {
      const { status } = await api.post<Instance>(
        verb === 'cancel' ? pathOf`/v1/instances/${id}/cancel` : pathOf`/v1/instances/${id}/retry`,
        reason,
      )
      results.push({ id, status })
    } catch (error) {
      if (!(error instanceof HoldfastApiError) || (error.code !== 'not_found' && error.code !== 'instance_conflict')) throw error
      results.push({ id, error: { code: error.code, message: error.message } })
    }
  }
  const refused = results.some(({ error }) => error !== undefined)
  return {
    document: { results },
    text: table(
      ['id', 'status', 'refused'],
      results.map(({ id, status, error }) => [id, status, error?.message]),
      '',
    ),
    exitCode: refused ? ExitCodes.refused : ExitCodes.ok,
  }
}

interface Bulk {
  readonly filter: InstanceFilter
  readonly reason: object
  readonly most: number
  readonly say: (line: string) => void
}

async function byFilter(api: Api, verb: Verb, { filter, reason, most, say }: Bulk): Promise<Omit<BulkResponse, 'next'>> {
  const ids: InstanceId[] = []
  let after: InstanceId | undefined
  for (;;) {
    const limit = Math.min(MOST_AT_ONCE, most - ids.length)
    const batch = await api.post<BulkResponse>(verb === 'cancel' ? '/v1/instances/cancel' : '/v1/instances/retry', {
      filter,
      limit,
      ...(after === undefined ? {} : { after }),
      ...reason,
    })
    ids.push(...batch.ids)
    if (!batch.more || batch.next === undefined || ids.length >= most) return { matched: ids.length, ids, more: batch.more }
    after = batch.next
    say(`${ids.length} so far`)
  }
}
