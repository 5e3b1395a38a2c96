import type { Command } from 'commander'
import { fields, table } from '../answer.ts'
import { pathOf } from '../api.ts'
import { duration, positiveNumber, wholeNumber } from '../argument.ts'
import { addCommand, addGroup, type Context, type Host } from '../command.ts'
import type { GlobalOptions } from '../session.ts'

interface Limit {
  readonly kind: 'rate' | 'gate'
  readonly name: string
  readonly rate?: number
  readonly period_ms?: number
  readonly burst?: number
  readonly shards?: number
  readonly capacity?: number
  readonly keys?: readonly { readonly key: string; readonly held?: number; readonly tokens?: number; readonly waiting: number }[]
}

interface RateOptions {
  readonly rate: number
  readonly per?: number
  readonly burst?: number
  readonly shards?: number
}

export function addLimits(program: Command, host: Host): void {
  const list = {
    summary: 'Show rate limits and gates and who waits for them; set them',
    run: async ({ session }: Context, options: GlobalOptions) => {
      const { limits } = await session.api(options).get<{ limits: readonly Limit[] }>('/v1/limits')
      return { document: { limits }, text: limitTable(limits) }
    },
  }
  const group = addGroup(program, host, {
    ...list,
    name: 'limits',
    examples: ['limits', 'limits set-rate mail --rate 100 --per 1min --burst 200', 'limits set-gate printer --capacity 3'],
  })
  addCommand(group, host, { ...list, name: 'list', summary: 'Show limits, the same as `limits`', examples: ['limits list'] })
  addCommand<RateOptions>(group, host, {
    name: 'set-rate',
    summary: 'Set how often steps of a rate limit may start; holds from now on, for every partition of the name',
    examples: [`limits set-rate mail --rate 100 --per '1 min' --burst 200`, 'limits set-rate model --rate 5000 --shards 8'],
    configure: (command) =>
      command
        .argument('<name>', 'the limit; partitions `name:…` share its policy, each with tokens of its own')
        .requiredOption('--rate <n>', 'tokens that come back in each period; 0: none ever', positiveNumber)
        .option('--per <time>', `the period; default '1 s'`, duration)
        .option('--burst <n>', 'most tokens at once; default: the rate', positiveNumber)
        .option('--shards <n>', 'rows that the tokens are spread over, for many claims a second', wholeNumber(1, 1_024)),
    run: async ({ session }, options, [name]) => {
      const body = {
        rate: options.rate,
        ...named('period', options.per),
        ...named('burst', options.burst),
        ...named('shards', options.shards),
      }
      return limitAnswer(await session.api(options).put<Limit>(pathOf`/v1/limits/rate/${String(name)}`, body))
    },
  })
  addCommand<{ readonly capacity: number }>(group, host, {
    name: 'set-gate',
    summary: 'Set how many instances of a concurrency key may execute at once; holds from now on',
    examples: ['limits set-gate printer --capacity 3'],
    configure: (command) =>
      command
        .argument('<name>', 'the gate; concurrency keys `name` and `name:partition` go by it')
        .requiredOption('--capacity <n>', 'instances at once; 0 stops them', wholeNumber(0, 1_000_000)),
    run: async ({ session }, options, [name]) =>
      limitAnswer(await session.api(options).put<Limit>(pathOf`/v1/limits/gate/${String(name)}`, { capacity: options.capacity })),
  })
}

const named = (name: string, value: number | undefined): object => (value === undefined ? {} : { [name]: value })

const limitAnswer = (limit: Limit) => {
  const { kind, name, rate, period_ms, burst, shards, capacity } = limit
  return { document: limit, text: fields({ kind, name, rate, 'period (ms)': period_ms, burst, shards, capacity }) }
}

/** A line for each key in use, and one for a limit that nobody uses. */
const limitTable = (limits: readonly Limit[]): string =>
  table(
    ['kind', 'limit', 'allows', 'key', 'in use', 'waiting'],
    limits.flatMap((limit) => {
      const policy = [limit.kind, limit.name, allowance(limit)]
      const keys = limit.keys ?? []
      if (keys.length === 0) return [[...policy, '', '', 0]]
      return keys.map(({ key, held, tokens, waiting }) => [...policy, key, held === undefined ? left(tokens) : `${held} held`, waiting])
    }),
    'no limit is set',
  )

const left = (tokens: number | undefined): string => (tokens === undefined ? '' : `${tokens} left`)

const allowance = ({ kind, rate, period_ms: period, burst, capacity }: Limit): string =>
  kind === 'gate' ? `${capacity ?? '?'} at once` : `${rate ?? '?'} in ${period ?? 1_000} ms, burst ${burst ?? '?'}`
