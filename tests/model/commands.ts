// What a program of the model test is made of: commands with everything decided, and operations from which they come, which still say `the nth ticket there is`.
import fc, { type Arbitrary } from 'fast-check'

/** The number of an instance in its program, in the order of creation. */
export type Nth = number

export interface NewRow {
  readonly queue: string
  readonly priority: number
  /** Hours. */
  readonly delay: number
  readonly version: number
  readonly key: string | null
  readonly rateKey: string | null
  readonly weight: number
  readonly correlationKey: string | null
  readonly scope: readonly ('done' | 'failed')[]
}

/** What a step answers. Which of these a kind looks at is as in `StagedOutcome`. */
export interface AnswerShape {
  readonly kind: 'done' | 'fail' | 'cancel' | 'next' | 'sleep' | 'retry' | 'await_signal' | 'spawn' | 'continue_as'
  readonly discard: boolean
  /** Hours. */
  readonly delay: number
  readonly awaits: readonly string[]
  /** Hours; null: none. */
  readonly timeout: number | null
  /** The next step has this key; `keep`: that of the step before. */
  readonly key: string | null
  readonly rateKey: string | null
  readonly weight: number
  readonly children: readonly NewRow[]
  readonly joinCount: number | null
}

/** A claim as its worker knows it. */
export interface Ticket {
  readonly instance: Nth
  readonly epoch: number
  readonly key: string | null
  readonly step: string
  readonly attempt: number
  /** Places in `Specification.sent` of the signals that the step was shown as awaited. */
  readonly shown: readonly number[]
}

export interface Answered {
  readonly ticket: Ticket
  readonly shape: AnswerShape
  /** Direct only: the worker goes on with the next step under this claim. */
  readonly goesOn: boolean
}

/** `wakes: false`: the process died between its commit and what it does after it. */
export type Command =
  | { readonly do: 'insert'; readonly rows: readonly NewRow[] }
  | {
      readonly do: 'claim'
      readonly queue: string
      readonly limit: number
      readonly window: number
      readonly park: boolean
      readonly versions: readonly number[]
      readonly wakes: boolean
    }
  | { readonly do: 'claimOne'; readonly instance: Nth; readonly wakes: boolean }
  | { readonly do: 'stage'; readonly answered: readonly Answered[] }
  | { readonly do: 'direct'; readonly answered: readonly Answered[]; readonly wakes: boolean }
  | { readonly do: 'flush'; readonly limit: number; readonly commits: boolean; readonly wakes: boolean }
  | { readonly do: 'signal'; readonly instance: Nth; readonly name: string; readonly dedupKey: string | null }
  | { readonly do: 'beat'; readonly tickets: readonly Ticket[] }
  | { readonly do: 'release'; readonly tickets: readonly Ticket[]; readonly wakes: boolean }
  | { readonly do: 'reap'; readonly wakes: boolean }
  | { readonly do: 'promoteDue' }
  | { readonly do: 'promoteThrottled' }
  | { readonly do: 'fireDeadlines' }
  | { readonly do: 'sweep' }
  | { readonly do: 'cancel'; readonly instances: readonly Nth[]; readonly wakes: boolean }
  | { readonly do: 'cancelOverdue'; readonly wakes: boolean }
  | { readonly do: 'cascade'; readonly wakes: boolean }
  | { readonly do: 'retry'; readonly instances: readonly Nth[] }
  | { readonly do: 'gate'; readonly capacity: number; readonly wakes: boolean }
  | { readonly do: 'pause'; readonly queue: string; readonly paused: boolean }
  | { readonly do: 'deleteFinished'; readonly retention: number }
  | { readonly do: 'pass'; readonly hours: number }

export const QUEUES = ['a', 'b'] as const
/** `g` may be declared as a gate, and its partition with it; `s` never is. */
export const GATE = 'g'
export const RATE = 'r'
export const LEASE_HOURS = 3
export const GRACE_HOURS = 2
export const MAX_RECLAIMS = 2

/** The limits that a program begins with. */
export interface Limits {
  readonly capacity: number | null
  readonly rate: { readonly rate: number; readonly hours: number; readonly burst: number } | null
}

export type Operation =
  | { readonly do: 'insert'; readonly rows: readonly NewRow[] }
  | {
      readonly do: 'claim'
      readonly queue: string
      readonly limit: number
      readonly further: number
      readonly newest: boolean
      readonly park: boolean
      readonly wakes: boolean
    }
  | { readonly do: 'claimOne'; readonly pick: number; readonly wakes: boolean }
  | {
      readonly do: 'answer'
      readonly tickets: readonly { readonly pick: number; readonly late: boolean; readonly shape: AnswerShape; readonly goesOn: boolean }[]
      readonly direct: boolean
      readonly wakes: boolean
    }
  | {
      readonly do: 'beat' | 'release'
      readonly picks: readonly { readonly pick: number; readonly late: boolean }[]
      readonly wakes: boolean
    }
  | { readonly do: 'signal'; readonly pick: number; readonly name: string; readonly dedupKey: string | null }
  | { readonly do: 'cancel' | 'retry'; readonly picks: readonly number[]; readonly wakes: boolean }
  | Exclude<Command, { do: 'insert' | 'claim' | 'claimOne' | 'stage' | 'direct' | 'beat' | 'release' | 'signal' | 'cancel' | 'retry' }>

/** Plain objects, which print as they are written. */
const record = <T extends object>(of: { readonly [K in keyof T]: Arbitrary<T[K]> }): Arbitrary<T> =>
  fc.record(of, { noNullPrototype: true }) as Arbitrary<T>

const rarely = fc.integer({ min: 0, max: 7 }).map((n) => n === 7)
const mostly = fc.integer({ min: 0, max: 7 }).map((n) => n < 7)
const pick = fc.nat({ max: 40 })
const weight = fc.constantFrom(1, 1, 1, 2)
const hours = fc.integer({ min: 1, max: 3 })
const signalName = fc.constantFrom('p', 'q')
const some = { minLength: 1, maxLength: 3 }

/** What the programs of one kind are rich in: in a mixture of everything, what needs five things of one sort to meet hardly ever happens. */
interface Bias {
  readonly keys: readonly (string | null)[]
  readonly rateKeys: readonly (string | null)[]
  readonly kinds: readonly AnswerShape['kind'][]
  readonly capacity: Arbitrary<number | null>
  readonly rate: Arbitrary<Limits['rate']>
  /** How often a gate's capacity changes, and how often a signal is sent; how often somebody is cancelled or retried. */
  readonly gates: number
  readonly signals: number
  readonly control: number
  /** How often a worker answers, against 10 claims; those that do not have crashed. */
  readonly answers: number
  /** One queue, and rows that differ in nothing but their limits. */
  readonly plain: boolean
}

const capacity = fc.constantFrom(0, 1, 2, 2, 3, 3, 4, 4)
// With these, all that the model computes of tokens and times is exact.
const rate = record({ rate: fc.constantFrom(0, 1, 1), hours: fc.constantFrom(1, 2), burst: fc.integer({ min: 2, max: 3 }) })

const mixed: Bias = {
  keys: [null, null, 's', 's', GATE, GATE, `${GATE}:x`],
  rateKeys: [null, null, null, RATE, RATE, `${RATE}:x`],
  kinds: [
    'done',
    'done',
    'fail',
    'cancel',
    'next',
    'next',
    'sleep',
    'retry',
    'await_signal',
    'await_signal',
    'spawn',
    'spawn',
    'continue_as',
  ],
  capacity: fc.option(capacity, { freq: 3 }),
  rate: fc.option(rate, { freq: 6 }),
  gates: 1,
  signals: 4,
  control: 2,
  answers: 10,
  plain: false,
}
const themes = {
  mixed,
  gates: {
    ...mixed,
    keys: [GATE, GATE, GATE, GATE, GATE, null],
    rateKeys: [null],
    kinds: ['done', 'done', 'next', 'retry'],
    capacity,
    gates: 6,
    signals: 0,
    control: 1,
    plain: true,
  },
  rates: {
    ...mixed,
    keys: [null, null, 's', GATE],
    rateKeys: [RATE, RATE, RATE, null],
    kinds: ['done', 'next', 'retry'],
    rate,
    gates: 0,
    signals: 0,
    control: 1,
    plain: true,
  },
  keys: { ...mixed, keys: ['s', 's', null], rateKeys: [null], gates: 2, signals: 0, control: 3 },
  signals: {
    ...mixed,
    keys: [null],
    rateKeys: [null],
    kinds: ['done', 'fail', 'await_signal', 'await_signal', 'next'],
    gates: 0,
    signals: 10,
  },
  cancellation: {
    ...mixed,
    keys: [null, null, 's'],
    rateKeys: [null],
    kinds: ['done', 'fail', 'spawn', 'spawn', 'cancel'],
    gates: 0,
    signals: 1,
    control: 6,
  },
  children: {
    ...mixed,
    keys: [null],
    rateKeys: [null],
    kinds: ['done', 'done', 'fail', 'retry', 'spawn', 'spawn', 'spawn'],
    gates: 0,
    signals: 0,
    control: 1,
    answers: 20,
    plain: true,
  },
  crashes: {
    ...mixed,
    keys: [null, null, 's'],
    rateKeys: [null],
    kinds: ['done', 'next', 'retry', 'spawn'],
    gates: 0,
    signals: 0,
    control: 1,
    answers: 1,
    plain: true,
  },
} satisfies Record<string, Bias>

function programOf(bias: Bias): Arbitrary<Program> {
  const key = fc.constantFrom(...bias.keys)
  const rateKey = fc.constantFrom(...bias.rateKeys)
  const queue = bias.plain ? fc.constant(QUEUES[0]) : fc.constantFrom(...QUEUES)
  const row: Arbitrary<NewRow> = record({
    queue,
    priority: bias.plain ? fc.constant(0) : fc.constantFrom(0, 0, 1),
    delay: bias.plain ? fc.constant(0) : fc.constantFrom(0, 0, 0, 1, 2),
    version: bias.plain ? fc.constant(1) : fc.constantFrom(1, 1, 1, 2),
    key,
    rateKey,
    weight,
    correlationKey: fc.constantFrom(null, null, null, 'k1', 'k2'),
    scope: fc.constantFrom<NewRow['scope'][]>([], [], ['done'], ['done', 'failed']),
  })
  const shape: Arbitrary<AnswerShape> = record({
    kind: fc.constantFrom(...bias.kinds),
    discard: rarely,
    delay: fc.integer({ min: 0, max: 2 }),
    awaits: fc.constantFrom(['p'], ['q'], ['p', 'q']),
    timeout: fc.option(hours),
    key,
    rateKey,
    weight,
    children: fc.array(row, { maxLength: 3 }),
    joinCount: fc.constantFrom(null, null, 1, 2),
  })
  const tickets = <More extends object>(more: { readonly [K in keyof More]: Arbitrary<More[K]> }) =>
    fc.array(record({ pick, late: rarely, ...more }), some)
  const weighted: readonly (readonly [number, object])[] = [
    [5, { do: 'insert', rows: fc.array(row, some) }],
    [
      8,
      {
        do: 'claim',
        queue,
        limit: fc.constantFrom(1, 1, 2, 3, 4),
        further: fc.constantFrom(0, 0, 2, 10),
        newest: mostly,
        park: mostly,
        wakes: mostly,
      },
    ],
    [1, { do: 'claimOne', pick, wakes: mostly }],
    [bias.answers, { do: 'answer', tickets: tickets({ shape, goesOn: fc.boolean() }), direct: fc.boolean(), wakes: mostly }],
    [bias.plain ? 2 : 4, { do: 'flush', limit: fc.constantFrom(1, 2, 100), commits: mostly, wakes: mostly }],
    [bias.signals, { do: 'signal', pick, name: signalName, dedupKey: fc.constantFrom(null, null, 'd1', 'd2') }],
    [2, { do: fc.constantFrom('beat', 'release'), picks: tickets({}), wakes: mostly }],
    [bias.control, { do: fc.constantFrom('cancel', 'retry'), picks: fc.array(pick, some), wakes: mostly }],
    [bias.control, { do: fc.constantFrom('cancelOverdue', 'cascade'), wakes: mostly }],
    [bias.plain && bias.answers > 1 ? 1 : 3, { do: 'reap', wakes: mostly }],
    [bias.plain ? 2 : 4, { do: fc.constantFrom('promoteDue', 'promoteThrottled', 'fireDeadlines', 'sweep') }],
    [bias.gates, { do: 'gate', capacity, wakes: mostly }],
    // A queue that nobody starts again makes a program of nothing.
    [bias.plain ? 0 : 1, { do: 'pause', queue, paused: rarely }],
    [bias.plain ? 0 : 1, { do: 'deleteFinished', retention: hours }],
    [bias.plain && bias.answers > 1 ? 1 : 4, { do: 'pass', hours: fc.integer({ min: 1, max: 4 }) }],
  ]
  const operation = fc.oneof(
    ...weighted.map(([often, fields]) => ({
      weight: often,
      arbitrary: record(
        Object.fromEntries(Object.entries(fields).map(([name, value]) => [name, typeof value === 'string' ? fc.constant(value) : value])),
      ),
    })),
  ) as Arbitrary<Operation>
  const rows = fc.array(row, { minLength: 2, maxLength: 8, size: 'max' })
  const first = record<Operation & { do: 'insert' }>({ do: fc.constant('insert'), rows })
  return record({
    limits: record({ capacity: bias.capacity, rate: bias.rate }),
    operations: fc.tuple(first, new SequenceArbitrary(operation, 5, 60)).map(([head, rest]) => [head, ...rest]),
  })
}

/** Like fc.array, whose shrinker only shortens at the front: this one leaves out any stretch, so that of fifty operations the four that matter remain. */
class SequenceArbitrary<T> extends fc.Arbitrary<readonly T[]> {
  readonly #of: Arbitrary<T>
  readonly #min: number
  readonly #max: number

  constructor(of: Arbitrary<T>, min: number, max: number) {
    super()
    this.#of = of
    this.#min = min
    this.#max = max
  }

  override generate(random: fc.Random, biasFactor: number | undefined): fc.Value<readonly T[]> {
    const length = random.nextInt(this.#min, this.#max)
    return together(Array.from({ length }, () => this.#of.generate(random, biasFactor)))
  }

  /** Only what this has generated, because the parts need what they were generated with. */
  override canShrinkWithoutContext(_: unknown): _ is readonly T[] {
    return false
  }

  override shrink(_: readonly T[], context: unknown): fc.Stream<fc.Value<readonly T[]>> {
    return fc.stream(this.#smaller(context as readonly fc.Value<T>[]))
  }

  *#smaller(parts: readonly fc.Value<T>[]): IterableIterator<fc.Value<readonly T[]>> {
    for (let stretch = Math.ceil(parts.length / 2); stretch >= 1; stretch = stretch === 1 ? 0 : Math.ceil(stretch / 2))
      for (let from = 0; from < parts.length; from += stretch) yield together(parts.toSpliced(from, stretch))
    for (const [at, { value, context }] of parts.entries())
      for (const simpler of this.#of.shrink(value, context)) yield together(parts.with(at, simpler))
  }
}

const together = <T>(parts: readonly fc.Value<T>[]): fc.Value<readonly T[]> =>
  new fc.Value(
    parts.map(({ value }) => value),
    parts,
  )

export interface Program {
  readonly limits: Limits
  readonly operations: readonly Operation[]
}

/** Programs about one thing, in which it happens more often than in those about everything. */
export const programsAbout = Object.fromEntries(Object.entries(themes).map(([name, bias]) => [name, programOf(bias)])) as Readonly<
  Record<keyof typeof themes, Arbitrary<Program>>
>

export const program: Arbitrary<Program> = fc.oneof(...Object.values(programsAbout))
