import type { InstanceId } from '@holdfast/contracts'
import { type ClaimedRow, type InboxRow, isConnectionLoss, isLostRace, loadInbox } from '@holdfast/queries'
import { ClaimPace, MAX_AHEAD } from './claim-pace.ts'
import { ClaimWindow } from './claim-window.ts'
import type { HeldClaim } from './lease-keeper.ts'
import type { Limiter } from './limiter.ts'
import type { Logger } from './logger.ts'
import type { MachineRegistry } from './machine-registry.ts'
import { type Claimed, type RunnerResources, type RunOutcome, runStep } from './run-step.ts'
import type { Verdict } from './outcome-writer.ts'
import { LazyAbort } from './step-context.ts'

export interface QueueWorkerOptions extends RunnerResources {
  readonly queue: string
  /** Steps of this queue that execute at once in this process. */
  readonly concurrency: number
  readonly worker: string
  readonly leaseMs: number
  readonly machines: MachineRegistry
  readonly limiter: Limiter
  readonly logger: Logger
  /** Longest pause between two looks at an empty queue that nobody hints at. */
  readonly maxIdleMs: number
  /** Outcomes that may wait to be staged before this queue stops claiming. */
  readonly maxUnstaged: number
  readonly unstaged: () => number
  readonly onClaimed: (claims: readonly Claimed[]) => void
  /** Claimed, and not going to be run by us: hand them back. */
  readonly onUnrun: (claims: readonly HeldClaim[]) => void
  /** A step with a timeout has started: its lease is not to be renewed for ever. */
  readonly onTimed: (claimed: Claimed, timeoutMs: number) => void
  /** Looked at and parked: whoever wakes them is to be looked after. */
  readonly onParked: (rows: readonly ClaimedRow[]) => void
  readonly onOutcome: (outcome: RunOutcome, settle?: (verdict: Verdict) => void) => void
  /** Most steps that one claim may go on through inline; 0 where outcomes are staged. */
  readonly maxChain: number
}

/** Most claims in one statement; past some hundreds a larger one gains nothing (11–16 µs a row either way). */
const MAX_CLAIM = 1_000
/** Claims that a queue may hold beyond those that execute: its buffer, and one claim on its way. */
export const MOST_CLAIMED_AHEAD: number = MAX_AHEAD + MAX_CLAIM
/** First pause after an empty claim; doubles up to `maxIdleMs`. Short, because hints are coalesced and the next one may be under way. */
const FIRST_IDLE_MS = 10
/** How long a small demand may wait for more to come together, so that busy queues claim in batches. */
const GATHER_MS = 5
/** A claim that lost the race for a serial key, or for a slot of a new gate, sees the winner at once; with every race somebody has won, so that each attempt has fewer rivals. */
const CLAIM_ATTEMPTS = 10
const MAX_ERROR_PAUSE_MS = 5_000

/**
 * Claims from one queue and runs what it has claimed: as many steps at once as `concurrency` allows, with a small buffer ahead when steps are
 * fast (see {@link ClaimPace}).
 */
export class QueueWorker {
  readonly #options: QueueWorkerOptions
  readonly #pace = new ClaimPace()
  readonly #running = new Set<Claimed>()
  #buffer: Claimed[] = []
  /** Those between two steps of an inline continuation. */
  #continuing = 0
  #continued: { readonly row: ClaimedRow; readonly chain: number }[] = []
  #stopped = true
  /** From a stop on no claim goes on inline; a worker that is driven by `runOnce` is not started and not stopping either. */
  #stopping = false
  #claiming: Promise<void> | undefined
  #wakeDuringClaim = false
  #timer: NodeJS.Timeout | undefined
  #timerAtMs = Number.POSITIVE_INFINITY
  #idleMs = FIRST_IDLE_MS
  #errors = 0
  readonly #window = new ClaimWindow()
  #more = false
  #onEmpty: (() => void)[] = []
  lastProgressMs = performance.now()

  constructor(options: QueueWorkerOptions) {
    this.#options = options
  }

  get running(): number {
    return this.#running.size
  }
  get buffered(): number {
    return this.#buffer.length
  }

  start(): void {
    if (!this.#stopped) return
    this.#stopped = false
    this.#stopping = false
    this.wake()
  }

  /** Something may be runnable: look now. */
  wake(): void {
    if (this.#stopped) return
    if (this.#claiming !== undefined) {
      this.#wakeDuringClaim = true
      return
    }
    this.#idleMs = FIRST_IDLE_MS
    this.#refill(true)
  }

  /** Outcomes have been staged: there may be room again. */
  refill(): void {
    if (!this.#stopped) this.#refill(false)
  }

  /** Claims once and runs everything claimed; answers how many. For tests and drains; not while started. */
  async runOnce(): Promise<number> {
    let rows = 0
    // A claim that only parked may have others behind it.
    do rows = await this.#claim(Math.min(MAX_CLAIM, this.#options.concurrency))
    while (rows === 0 && this.#more)
    this.#startBuffered()
    await this.#whenEmpty()
    return rows
  }

  /** Claims no more; answers what was claimed and not started, to be handed back. */
  async stop(): Promise<HeldClaim[]> {
    this.#stopped = true
    this.#stopping = true
    this.#clearTimer()
    await this.#claiming
    const left = this.#buffer
    this.#buffer = []
    return left.map(({ row }) => ({ id: row.id, epoch: row.claim_epoch }))
  }

  /** Resolves when no step runs; never rejects. */
  async idle(): Promise<void> {
    await this.#whenEmpty()
  }

  abortAll(reason: Error): void {
    for (const claimed of this.#running) claimed.abort.abort(reason)
  }
  stillRunning(): HeldClaim[] {
    return [...this.#running].map(({ row }) => ({ id: row.id, epoch: row.claim_epoch }))
  }
  /** Somebody asked it to stop: its step is told, and one that has not begun is run all the same, because what it answers decides. */
  cancel(id: InstanceId, reason: Error): void {
    for (const claimed of this.#running) if (claimed.row.id === id) claimed.abort.abort(reason)
  }
  lose(id: InstanceId, epoch: string, reason: Error): void {
    for (const claimed of this.#running) if (claimed.row.id === id && claimed.row.claim_epoch === epoch) claimed.abort.abort(reason)
    // Not started yet: its outcome would be dropped, so it is not even run.
    this.#buffer = this.#buffer.filter(({ row }) => row.id !== id || row.claim_epoch !== epoch)
  }

  #refill(woken: boolean): void {
    if (this.#stopped || this.#claiming !== undefined) return
    const nowMs = performance.now()
    const { concurrency, maxUnstaged, unstaged } = this.#options
    if (unstaged() >= maxUnstaged) return // staging calls refill()
    const target = concurrency + this.#pace.ahead(nowMs)
    const held = this.#running.size + this.#buffer.length + this.#continuing
    const want = Math.min(MAX_CLAIM, target - held)
    if (want <= 0) return // the next end calls refill()
    if (!woken && this.#timerAtMs !== Number.POSITIVE_INFINITY && this.#timerAtMs - nowMs > GATHER_MS) return // empty at the last look; wait for the timer or a hint
    if (!woken && want < target / 2 && held > 0) {
      this.#after(GATHER_MS)
      return
    }
    this.#clearTimer()
    this.#claiming = this.#claimAndStart(want).finally(() => {
      this.#claiming = undefined
      if (this.#stopped) return
      if (this.#wakeDuringClaim) {
        this.#wakeDuringClaim = false
        this.wake()
      } else if (this.#timerAtMs === Number.POSITIVE_INFINITY) this.#refill(false)
    })
  }

  async #claimAndStart(want: number): Promise<void> {
    try {
      const claimed = await this.#claim(want)
      this.#errors = 0
      this.lastProgressMs = performance.now()
      if (claimed === 0) {
        this.#after(this.#idleMs)
        this.#idleMs = Math.min(this.#options.maxIdleMs, this.#idleMs * 2)
        return
      }
      this.#idleMs = FIRST_IDLE_MS
      if (claimed < want) this.#after(FIRST_IDLE_MS) // that was all there is; another look at once would find nothing
      if (!this.#stopped) this.#startBuffered()
    } catch (error) {
      this.#errors += 1
      const pauseMs = Math.min(MAX_ERROR_PAUSE_MS, 50 * 2 ** Math.min(this.#errors, 10)) * (0.5 + Math.random() / 2)
      if (this.#errors === 1 || this.#errors % 20 === 0 || !isConnectionLoss(error)) {
        this.#options.logger.warn({ err: error, queue: this.#options.queue, consecutive: this.#errors }, 'claim failed; trying again')
      }
      this.#after(pauseMs)
    }
  }

  async #claim(limit: number): Promise<number> {
    const { queue, worker, leaseMs, machines, limiter } = this.#options
    const { window, park } = this.#window.next(limit, performance.now())
    const looked = await this.#claimRows(() => limiter.claim({ queue, limit, window, park, worker, leaseMs, machines: machines.keys() }))
    const rows = this.#parkDenied(looked)
    // Behind those that were denied there may be others: look further, and at once.
    this.#more = this.#window.looked(looked, { limit, window, park }, performance.now())
    if (this.#more) this.#wakeDuringClaim = true
    if (rows.length > 0) this.#buffer.push(...(await this.#withInbox(rows)))
    return rows.length
  }

  /** Hands over those that were parked; answers those that were admitted. */
  #parkDenied(looked: readonly ClaimedRow[]): readonly ClaimedRow[] {
    const rows = looked.filter(({ status }) => status === 'executing')
    if (rows.length === looked.length) return looked
    const parked = looked.filter(({ status }) => status === 'throttled')
    if (parked.length > 0) this.#options.onParked(parked)
    return rows
  }

  async #withInbox(rows: readonly ClaimedRow[]): Promise<Claimed[]> {
    const claimedAtMs = performance.now()
    const claims: Claimed[] = rows.map((row) => ({ row, inbox: NOTHING, abort: new LazyAbort(), claimedAtMs, chain: 0 }))
    this.#options.onClaimed(claims)
    try {
      // After the claim has committed, so that it holds every signal that woke one of these rows.
      const inbox = await loadInbox(this.#options.db, { ids: rows.map((row) => row.id) })
      if (inbox.length > 0) attachInbox(claims, inbox)
      return claims
    } catch (error) {
      // Leased to us with nobody to run them (R19): back with them, and if that fails too their leases run out.
      this.#options.onUnrun(rows.map((row) => ({ id: row.id, epoch: row.claim_epoch })))
      throw error
    }
  }

  async #claimRows(take: () => Promise<ClaimedRow[]>): Promise<ClaimedRow[]> {
    for (let attempt = 1; ; attempt += 1) {
      try {
        return await take()
      } catch (error) {
        if (!isLostRace(error) || attempt === CLAIM_ATTEMPTS) throw error
      }
    }
  }

  #startBuffered(): void {
    const { concurrency, machines, onTimed } = this.#options
    while (this.#running.size < concurrency) {
      const claimed = this.#buffer.shift()
      if (claimed === undefined) return
      const timeoutMs = machines.get(claimed.row.machine, claimed.row.version)?.steps.get(claimed.row.step)?.timeoutMs
      if (timeoutMs !== undefined) onTimed(claimed, timeoutMs)
      this.#running.add(claimed)
      void this.#run(claimed)
    }
  }

  async #run(claimed: Claimed): Promise<void> {
    const { machines, maxChain, onOutcome } = this.#options
    const { row } = claimed
    const machine = machines.get(row.machine, row.version)
    // The claim statement takes only what the registry has.
    if (machine === undefined) throw new Error(`claimed ${row.machine} version ${row.version}, which this process does not know`)
    const outcome = await runStep(claimed, machine, this.#options)
    this.#pace.finished(1, performance.now())
    this.#running.delete(claimed)
    if (!outcome.inline || claimed.chain >= maxChain || this.#stopping) onOutcome(outcome.inline ? { ...outcome, inline: false } : outcome)
    else void this.#continue(claimed, outcome)
    this.#next()
  }

  /**
   * Goes on with the next step of an instance as soon as the one before is committed. Its place is another's meanwhile: nothing of it executes, and a commit
   * that only as many could join as execute at once would be a small one (three-step machines came at a third of the rate that the queue gives them).
   */
  async #continue(claimed: Claimed, outcome: RunOutcome): Promise<void> {
    this.#continuing += 1
    // Limits of the next step's own are taken by a claim of that one instance; its own key, kept or let go, needs none.
    const underThisClaim = outcome.rateKey === undefined && outcome.concurrencyKey === undefined
    const verdict = await new Promise<Verdict>((settle) => this.#options.onOutcome({ ...outcome, inline: underThisClaim }, settle))
    const row = verdict.landed
      ? await this.#rowToGoOnWith(claimed.row, outcome, verdict).catch((error: unknown) => this.#leftBehind([claimed.row], error))
      : undefined
    if (row === undefined) {
      this.#continuing -= 1
      this.#next()
      return
    }
    // All that one commit lets go on come in one turn of the event loop, and look into their inboxes together.
    if (this.#continued.push({ row, chain: claimed.chain + 1 }) === 1) setImmediate(() => void this.#startContinued())
  }

  async #startContinued(): Promise<void> {
    const continued = this.#continued.splice(0)
    const rows = continued.map(({ row }) => row)
    try {
      const claims = await this.#withInbox(rows)
      if (this.#stopping) this.#options.onUnrun(rows.map((row) => ({ id: row.id, epoch: row.claim_epoch })))
      // Before those that have not begun: what they hold, they hold no longer than they must.
      else this.#buffer.unshift(...claims.map((claimed, index) => ({ ...claimed, chain: continued[index]?.chain ?? 0 })))
    } catch (error) {
      this.#leftBehind(rows, error)
    }
    this.#continuing -= continued.length
    this.#next()
  }

  #next(): void {
    this.#startBuffered()
    if (this.#isEmpty()) for (const resolve of this.#onEmpty.splice(0)) resolve()
    if (!this.#stopped) this.#refill(false)
  }

  async #rowToGoOnWith(row: ClaimedRow, outcome: RunOutcome, { continuedAs }: Verdict): Promise<ClaimedRow | undefined> {
    const { worker, leaseMs, machines, limiter } = this.#options
    if (continuedAs === undefined) {
      if (outcome.rateKey === undefined && outcome.concurrencyKey === undefined) return undefined // asked to stop meanwhile
      return this.#parkDenied(await this.#claimRows(() => limiter.claimById({ id: row.id, worker, leaseMs, machines: machines.keys() })))[0]
    }
    return {
      ...row,
      claim_epoch: continuedAs,
      step: outcome.step ?? row.step,
      state: outcome.state === undefined ? row.state : (JSON.parse(outcome.state) as ClaimedRow['state']),
      attempt: 0,
      reclaims: 0,
      awaits: null,
      concurrency_key: outcome.keyChange === true ? null : row.concurrency_key,
    }
  }

  #leftBehind(rows: readonly ClaimedRow[], error: unknown): undefined {
    this.#options.logger.warn(
      { err: error, instance_ids: rows.slice(0, 10).map(({ id }) => id) },
      'inline continuations could not go on; their leases or the queue bring them back',
    )
  }

  async #whenEmpty(): Promise<void> {
    if (this.#isEmpty()) return
    await new Promise<void>((resolve) => this.#onEmpty.push(resolve))
  }
  #isEmpty(): boolean {
    return this.#running.size === 0 && this.#buffer.length === 0 && this.#continuing === 0
  }

  #after(ms: number): void {
    const atMs = performance.now() + ms
    if (atMs >= this.#timerAtMs) return
    this.#clearTimer()
    this.#timerAtMs = atMs
    this.#timer = setTimeout(() => {
      this.#clearTimer()
      this.#refill(true)
    }, ms)
  }
  #clearTimer(): void {
    clearTimeout(this.#timer)
    this.#timer = undefined
    this.#timerAtMs = Number.POSITIVE_INFINITY
  }
}

const NOTHING: readonly InboxRow[] = []

function attachInbox(claims: Claimed[], inbox: readonly InboxRow[]): void {
  const byTarget = Map.groupBy(inbox, (signal) => signal.target_id)
  for (const [index, claimed] of claims.entries()) {
    const signals = byTarget.get(claimed.row.id)
    if (signals !== undefined) claims[index] = { ...claimed, inbox: signals }
  }
}
