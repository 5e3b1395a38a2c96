import type { EnqueueRequest, EnqueueResponse } from '@holdfast/contracts'
import { Limits, TerminalStatuses } from '@holdfast/contracts'
import { type Command, InvalidArgumentError } from 'commander'
import { duration, type RateLimit, rateLimit, readJson, wholeNumber } from '../argument.ts'
import { addCommand, type Host } from '../command.ts'
import { UsageError } from '../exit-code.ts'

interface EnqueueOptions {
  readonly input?: string
  readonly queue?: string
  readonly priority?: number
  readonly delay?: number
  readonly at?: string
  readonly machineVersion?: number
  readonly correlationKey?: string
  readonly keepKey?: readonly (typeof TerminalStatuses)[number][]
  readonly concurrencyKey?: string
  readonly rateLimit?: RateLimit
  readonly weight?: number
}

/** With the limit of its first step, for APIs that have limits. */
type Body = EnqueueRequest & { readonly rate_limit?: RateLimit & { readonly weight?: number } }

export function addEnqueue(program: Command, host: Host): void {
  addCommand<EnqueueOptions>(program, host, {
    name: 'enqueue',
    summary: 'Insert an instance of a machine or job',
    more: 'With a correlation key that a live instance occupies it answers that one instead, and says so.',
    examples: [
      `enqueue send-email --input '{"to":"ada@example.com","subject":"Hello"}'`,
      `enqueue checkout --input '{"order":7}' --correlation-key order-7 --delay '10 min'`,
      'enqueue send-email --input @mail.json --queue mail --priority 5 --rate-limit mail:tenant-7 --weight 2',
    ],
    configure: (command) =>
      command
        .argument('<machine>', 'name of the machine or job')
        .option('--input <json>', 'state or input: JSON, @file, or - for the standard input; default {}')
        .option('--queue <name>', "queue; default: the machine's own")
        .option('--priority <n>', 'lower runs first; default 0', wholeNumber(Limits.priorityMin, Limits.priorityMax))
        .option('--delay <time>', `start no earlier than this from now: '90 s', '3 days', 1500 (ms)`, duration)
        .option('--at <instant>', 'start no earlier than this: 2030-01-31T08:00:00Z', instant)
        .option('--machine-version <n>', 'version of the machine; default: the newest', wholeNumber(1, 2_147_483_647))
        .option('--correlation-key <key>', 'at most one live instance of the project has this key')
        .option('--keep-key <status>', 'a terminal status in which it keeps the key (done, failed, cancelled); may be repeated', terminal)
        .option('--concurrency-key <key>', 'at most one instance with this key executes at a time, or as many as its gate has room for')
        .option('--rate-limit <name[:partition]>', 'rate limit that its first step draws on', rateLimit)
        .option('--weight <n>', 'how much it draws; default 1', wholeNumber(1, 2_147_483_647)),
    run: async ({ session }, options, [machine]) => {
      const repeatable = options.correlationKey !== undefined
      const request = body(String(machine), options)
      const { id, created } = await session.api(options).post<EnqueueResponse>('/v1/instances', request, { repeatable })
      return {
        document: { id, created },
        text: created ? `${id}` : `${id}  (not inserted: instance ${id} occupies the key ${options.correlationKey ?? ''})`,
      }
    },
  })
}

function body(machine: string, options: EnqueueOptions): Body {
  if (options.delay !== undefined && options.at !== undefined) throw new UsageError('give --delay or --at, not both')
  if (options.weight !== undefined && options.rateLimit === undefined)
    throw new UsageError('--weight says how much is drawn of a --rate-limit; give that too, as in --rate-limit mail --weight 2')
  return present({
    machine,
    input: options.input === undefined ? undefined : readJson(options.input, '--input'),
    queue: options.queue,
    priority: options.priority,
    delay_ms: options.delay,
    eligible_at: options.at,
    version: options.machineVersion,
    correlation_key: options.correlationKey,
    correlation_scope: options.keepKey === undefined ? undefined : [...options.keepKey],
    concurrency_key: options.concurrencyKey,
    rate_limit: options.rateLimit === undefined ? undefined : present({ ...options.rateLimit, weight: options.weight }),
  }) as Body
}

/** Without the fields that nobody has given. */
const present = (fields: object): object => Object.fromEntries(Object.entries(fields).filter(([, value]) => value !== undefined))

function instant(text: string): string {
  const time = new Date(text)
  if (!/^\d{4}-\d{2}-\d{2}T.*(?:Z|[+-]\d{2}:?\d{2})$/.test(text) || Number.isNaN(time.getTime()))
    throw new InvalidArgumentError('Expected an instant with its offset, as in 2030-01-31T08:00:00Z or 2030-01-31T09:00:00+01:00.')
  return time.toISOString()
}

function terminal(text: string, before: readonly string[] = []): readonly string[] {
  if (!(TerminalStatuses as readonly string[]).includes(text))
    throw new InvalidArgumentError(`Expected one of ${TerminalStatuses.join(', ')}.`)
  return [...before, text]
}
