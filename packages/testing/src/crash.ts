import type { MachineRef } from '@holdfast/contracts'
import { machineName, type Place, type StepRecord } from './step-record.ts'
import type { Moment } from './mortal-driver.ts'

//                    worker                                         flusher
//   claim ─┬─ inbox ─┬─ step ─┬─ stage ─┬─            look ─ apply ─┬─ commit ─┬─ wake those who wait
//    after-claim     │    after-step    │                     before-flush     │
//               before-step        after-stage                            after-flush
//
// With direct flush the worker applies outcomes itself: there is no after-stage, and before-flush and after-flush are points of the worker.

/** Where a process can be made to die. */
export const CrashPoints = Object.freeze([
  /** The claim is committed, and its worker has not heard of it. */
  'after-claim',
  /** Claimed, the inbox is read, the step has not begun. */
  'before-step',
  /** The step has run, with all that it did outside; its outcome is not stored, and is lost. The step runs again: the point that shows whether it may. */
  'after-step',
  /** The outcome is stored and the worker dies: nothing runs twice. */
  'after-stage',
  /** The outcomes are applied and the flusher dies before its commit: none of it has happened, and another flusher applies them. */
  'before-flush',
  /** Committed, and the flusher dies before it has told anybody. */
  'after-flush',
] as const)
export type CrashPoint = (typeof CrashPoints)[number]

/** A point, for the first instance that comes there; or for those of a machine, a step or an id. */
export interface Crash {
  readonly at: CrashPoint
  readonly machine?: MachineRef | string
  readonly step?: string
  readonly instance?: string
}

const CLAIMS: ReadonlySet<string> = new Set(['engine.claim', 'engine.claim_by_id'])
const APPLIES: ReadonlySet<string> = new Set(['engine.apply_outcomes', 'engine.apply_given'])
const STAGE = 'engine.stage_outcomes'
const INBOX = 'engine.load_inbox'

interface ClaimedRow {
  readonly id: string
  readonly status: string
  readonly machine: string
  readonly step: string
}

/** Watches what the processes of a drain send, follows how far each outcome has come, and says when it is time to die. */
export class CrashPlan {
  readonly #crash: Crash
  readonly #record: StepRecord
  #left: number
  happened = 0

  /** `times`: 0 for a plan that only watches. */
  constructor(crash: Crash, times: number, record: StepRecord) {
    this.#crash = crash
    this.#left = times
    this.#record = record
  }

  get outstanding(): boolean {
    return this.#left > 0
  }

  /** Whether the process that has come to this moment dies of it. */
  isFatal(moment: Moment): boolean {
    const [point, places] = this.#reached(moment)
    if (point === undefined || !this.outstanding || point !== this.#crash.at || !places.some((place) => this.#isAimedAt(place)))
      return false
    this.#left -= 1
    this.happened += 1
    return true
  }

  #reached({ when, statement, rows, ids, own }: Moment): readonly [CrashPoint | undefined, readonly Place[]] {
    const record = this.#record
    if (when === 'committed' && CLAIMS.has(statement)) {
      const claimed = (rows as readonly ClaimedRow[]).filter(({ status }) => status === 'executing')
      for (const place of claimed) record.claimed(place)
      return ['after-claim', claimed]
    }
    if (when === 'committed' && statement === INBOX) return ['before-step', record.placesOf(ids ?? [])]
    // In a transaction of its own (ctx.commit) the step has not returned yet, and is the one whose claim is locked there.
    const ended = own === undefined ? record.ended() : record.placesOf([own])
    if (statement === STAGE) {
      if (when === 'before') return ['after-step', ended]
      if (when !== 'committed') return [undefined, []]
      record.nowStaged(ended)
      return ['after-stage', ended]
    }
    if (!APPLIES.has(statement)) return [undefined, []]
    const direct = statement === 'engine.apply_given'
    if (when === 'before') return direct ? ['after-step', ended] : [undefined, []]
    const flushed = direct ? ended : record.staged()
    if (when === 'committing') return ['before-flush', flushed]
    if (direct) record.nowStaged(flushed)
    record.nowFlushed()
    return ['after-flush', flushed]
  }

  #isAimedAt({ id, machine, step }: Place): boolean {
    const { machine: wanted, step: wantedStep, instance } = this.#crash
    return (
      (wanted === undefined || machineName(wanted) === machine) &&
      (wantedStep === undefined || wantedStep === step) &&
      (instance === undefined || instance === id)
    )
  }
}
