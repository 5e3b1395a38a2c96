// The engine as docs/ and design/engine.md describe it, in memory and one thing after the other: no locks, no plans, no batches, nothing that has to be fast. What the statements
// do to their tables is compared with this after each command.
import {
  type Answered,
  type AnswerShape,
  type Command,
  GATE,
  GRACE_HOURS,
  LEASE_HOURS,
  type Limits,
  MAX_RECLAIMS,
  type NewRow,
  type Nth,
  RATE,
  type Ticket,
} from './commands.ts'

export type Status =
  | 'scheduled'
  | 'runnable'
  | 'throttled'
  | 'executing'
  | 'awaiting_signal'
  | 'awaiting_children'
  | 'done'
  | 'failed'
  | 'cancelled'

/** What is written by one command has one time; of two commands in one hour the later one is later. */
export interface Moment {
  readonly hour: number
  readonly turn: number
}

export interface Instance {
  readonly nth: Nth
  readonly queue: string
  readonly priority: number
  readonly born: Moment
  readonly correlationKey: string | null
  readonly scope: readonly string[]
  readonly parent: Nth | null
  parentEpoch: number | null
  version: number
  status: Status
  step: string
  epoch: number
  attempt: number
  reclaims: number
  eligible: Moment
  key: string | null
  rateKey: string | null
  weight: number
  awaits: readonly string[] | null
  /** Of an await, in hours. */
  deadline: number | null
  /** Children that have still to end. */
  pending: number
  /** Of one that waits for a rate limit, in hours; `at` is what the database made of it, because of two in one hour the order is a matter of microseconds. */
  until: { hour: number; at: number } | null
  lease: number | null
  cancelAsked: Moment | null
  holdsSlot: boolean
  error: string | null
  ended: number | null
}

interface Signal {
  /** Place in the order of all that were sent. */
  readonly nth: number
  readonly target: Nth
  readonly name: string
}

interface Staged {
  readonly answered: Answered
  readonly turn: number
}

/** What a command answers, in the words of both sides. */
export type Answer = unknown

const isEnded = ({ status }: Instance): boolean => status === 'done' || status === 'failed' || status === 'cancelled'
const waitsInLine = ({ status }: Instance): boolean => status === 'runnable' || status === 'throttled'

/** Lower first: priority, then time, then age. */
const byUrgency = (a: Instance, b: Instance): number =>
  a.priority - b.priority || a.eligible.hour - b.eligible.hour || a.eligible.turn - b.eligible.turn || a.nth - b.nth

export const MOVES_ON: ReadonlySet<AnswerShape['kind']> = new Set(['next', 'sleep', 'await_signal', 'spawn', 'continue_as'])
const ENDS: ReadonlySet<AnswerShape['kind']> = new Set(['done', 'fail', 'cancel'])

export class Specification {
  hour = 0
  turn = 0
  readonly instances = new Map<Nth, Instance>()
  /** Every claim that was ever given, as its worker knows it. */
  readonly tickets: Ticket[] = []
  signals: Signal[] = []
  outcomes: Staged[] = []
  readonly notes = new Map<Nth, number>()
  readonly buckets = new Map<string, { tokens: number; hour: number }>()
  readonly #receipts = new Set<string>()
  readonly #paused = new Set<string>()
  readonly #limits: { capacity: number | null; readonly rate: Limits['rate'] }
  #created = 0
  #sent = 0

  constructor(limits: Limits) {
    this.#limits = { ...limits }
  }

  perform(command: Command): Answer {
    this.turn += 1
    switch (command.do) {
      case 'insert':
        return this.#insert(command.rows)
      case 'claim':
        return this.#claim(command)
      case 'claimOne':
        return this.#claimOne(command.instance, command.wakes)
      case 'stage':
        return this.#stage(command.answered)
      case 'direct':
        return this.#apply(command.answered, command.wakes)
      case 'flush':
        return this.#flush(command)
      case 'signal':
        return this.#signal(command)
      case 'beat':
        return this.#beat(command.tickets)
      case 'release':
        return this.#release(command.tickets, command.wakes)
      case 'reap':
        return this.#reap(command.wakes)
      case 'promoteDue':
        return this.#each(
          (g) => g.status === 'scheduled' && g.eligible.hour <= this.hour,
          (g) => void (g.status = 'runnable'),
        )
      case 'promoteThrottled':
        return this.#each(
          (g) => g.status === 'throttled' && g.until !== null && g.until.hour <= this.hour,
          (g) => {
            g.status = 'runnable'
            g.until = null
          },
        )
      case 'fireDeadlines':
        return this.#each(
          (g) => g.status.startsWith('awaiting_') && g.deadline !== null && g.deadline <= this.hour,
          (g) => this.#makeRunnable(g),
        )
      case 'sweep':
        return this.#wake(this.#all().flatMap((g) => (waitsInLine(g) && g.key !== null ? [g.key] : [])))
      case 'cancel':
        return this.#cancel(command.instances, command.wakes)
      case 'cancelOverdue':
        return this.#cancelOverdue(command.wakes)
      case 'cascade':
        return this.#cascade(command.wakes)
      case 'retry':
        return this.#retry(command.instances)
      case 'gate':
        this.#limits.capacity = command.capacity
        return command.wakes ? this.#wake(this.#all().flatMap((g) => (g.key?.split(':')[0] === GATE ? [g.key] : []))) : undefined
      case 'pause':
        if (command.paused) this.#paused.add(command.queue)
        else this.#paused.delete(command.queue)
        return undefined
      case 'deleteFinished':
        return this.#deleteFinished(command.retention)
      case 'pass':
        this.hour += command.hours
        return undefined
    }
  }

  /** Live claims, as their workers know them. */
  standing(): Ticket[] {
    return this.tickets.filter((ticket) => this.#stands(ticket) !== undefined)
  }

  slotsHeld(key: string): number {
    return this.#all().filter((g) => g.status === 'executing' && g.holdsSlot && g.key === key).length
  }

  #all(): Instance[] {
    return [...this.instances.values()]
  }

  #now(hours = 0): Moment {
    return { hour: this.hour + hours, turn: this.turn }
  }

  #each(which: (g: Instance) => boolean, change: (g: Instance) => void): number {
    const found = this.#all().filter(which)
    for (const g of found) change(g)
    return found.length
  }

  #capacityOf(key: string): number | null {
    return key.split(':')[0] === GATE ? this.#limits.capacity : null
  }

  #rateOf(rateKey: string): NonNullable<Limits['rate']> | null {
    return rateKey.split(':')[0] === RATE ? this.#limits.rate : null
  }

  /** Whether a step may ask for this: the limit is there, and can ever give so much. */
  #canBeRated(rateKey: string | null, weight: number): boolean {
    return rateKey === null || weight <= (this.#rateOf(rateKey)?.burst ?? 0)
  }

  #stands({ instance, epoch }: Ticket): Instance | undefined {
    const g = this.instances.get(instance)
    return g !== undefined && g.status === 'executing' && g.epoch === epoch ? g : undefined
  }

  #isStaged({ nth, epoch }: Instance): boolean {
    return this.outcomes.some(({ answered: { ticket } }) => ticket.instance === nth && ticket.epoch === epoch)
  }

  // -- Insertion ----------------------------------------------------------------------------------------------------------

  #insert(rows: readonly NewRow[]): Answer {
    if (rows.some(({ rateKey, weight }) => !this.#canBeRated(rateKey, weight))) return 'refused'
    const landed = this.#land(rows)
    for (const row of landed) this.#create(row, null)
    return rows.map((row) => landed.includes(row))
  }

  /** Those whose correlation keys are free, in their order. Of several with one key the first lands. */
  #land(rows: readonly NewRow[]): NewRow[] {
    const taken = new Set(this.#all().flatMap((g) => (g.correlationKey !== null && occupies(g) ? [g.correlationKey] : [])))
    return rows.filter(({ correlationKey }) => {
      if (correlationKey === null) return true
      if (taken.has(correlationKey)) return false
      taken.add(correlationKey)
      return true
    })
  }

  #create(row: NewRow, parent: { nth: Nth; epoch: number } | null): void {
    const nth = this.#created
    this.#created += 1
    this.instances.set(nth, {
      nth,
      queue: row.queue,
      priority: row.priority,
      born: this.#now(),
      correlationKey: row.correlationKey,
      scope: row.scope,
      parent: parent?.nth ?? null,
      parentEpoch: parent?.epoch ?? null,
      version: row.version,
      status: row.delay > 0 ? 'scheduled' : 'runnable',
      step: 'start',
      epoch: 0,
      attempt: 0,
      reclaims: 0,
      eligible: this.#now(row.delay),
      key: row.key,
      rateKey: row.rateKey,
      weight: row.weight,
      awaits: null,
      deadline: null,
      pending: 0,
      until: null,
      lease: null,
      cancelAsked: null,
      holdsSlot: false,
      error: null,
      ended: null,
    })
  }

  // -- Claims -------------------------------------------------------------------------------------------------------------

  #claim({ queue, limit, window, park, versions, wakes }: Command & { do: 'claim' }): Answer {
    if (this.#paused.has(queue)) return []
    const candidates = this.#all()
      .filter((g) => g.status === 'runnable' && g.queue === queue && versions.includes(g.version))
      .sort(byUrgency)
      .slice(0, window)
    return this.#admit(candidates, limit, park, wakes)
  }

  #claimOne(nth: Nth, wakes: boolean): Answer {
    const g = this.instances.get(nth)
    return this.#admit(g?.status === 'runnable' && !this.#paused.has(g.queue) ? [g] : [], 1, true, wakes)
  }

  /** Takes what the limits allow, and parks what they deny; without `park`, what a key denies stays where it is. */
  #admit(candidates: readonly Instance[], limit: number, park: boolean, wakes: boolean): Answer {
    const free = candidates.filter((g) => this.#keyLetsPass(g, candidates))
    const admissible = new Set(free)
    const until = new Map<Nth, number>()
    const spent = new Map<string, Map<Nth, number>>()
    for (const rateKey of new Set(free.flatMap((g) => (g.rateKey === null ? [] : [g.rateKey])))) {
      const rate = this.#rateOf(rateKey)
      if (rate === null) continue
      const { hours, reaches } = this.#rateLine(rateKey, rate, free)
      for (const [nth, hour] of hours) {
        until.set(nth, hour)
        admissible.delete(this.instances.get(nth) as Instance)
      }
      spent.set(rateKey, reaches)
    }
    const taken = candidates.filter((g) => admissible.has(g)).slice(0, limit)
    for (const [rateKey, reaches] of spent) {
      const most = Math.max(0, ...taken.map(({ nth }) => reaches.get(nth) ?? 0))
      // One that has nothing taken from it stays as it was written, so that the tables can be compared.
      if (most > 0 || !this.buckets.has(rateKey)) this.buckets.set(rateKey, { tokens: this.#tokens(rateKey) - most, hour: this.hour })
    }
    for (const g of taken) {
      g.status = 'executing'
      g.epoch += 1
      g.lease = this.hour + LEASE_HOURS
      g.holdsSlot = g.key !== null && this.#capacityOf(g.key) !== null
    }
    const parked = candidates.filter((g) => (park && !free.includes(g)) || until.has(g.nth))
    for (const g of parked) {
      g.status = 'throttled'
      const hour = until.get(g.nth)
      g.until = hour === undefined ? null : { hour, at: Number.NaN }
    }
    const tickets = taken.map((g) => this.#ticket(g))
    if (wakes) this.#wake(parked.flatMap(({ key }) => (key === null ? [] : [key])))
    return tickets.map(({ instance, epoch, shown }) => ({ instance, epoch, shown }))
  }

  #ticket(g: Instance): Ticket {
    const shown = this.signals.filter(({ target, name }) => target === g.nth && g.awaits?.includes(name)).map(({ nth }) => nth)
    const ticket: Ticket = { instance: g.nth, epoch: g.epoch, key: g.key, step: g.step, attempt: g.attempt, shown }
    this.tickets.push(ticket)
    return ticket
  }

  /** A gate has room for as many as it has free slots; a serial key for the first of its queue's line, if nobody executes with it. */
  #keyLetsPass(g: Instance, candidates: readonly Instance[]): boolean {
    const { key } = g
    if (key === null) return true
    const capacity = this.#capacityOf(key)
    if (capacity !== null) return candidates.filter((other) => other.key === key).indexOf(g) < capacity - this.slotsHeld(key)
    return (
      !this.#heldSerially(key) &&
      !this.#all().some((other) => other.key === key && other.queue === g.queue && waitsInLine(other) && byUrgency(other, g) < 0)
    )
  }

  #heldSerially(key: string): boolean {
    return this.#all().some((g) => g.key === key && g.status === 'executing' && !g.holdsSlot)
  }

  #tokens(rateKey: string): number {
    const { rate, hours, burst } = this.#rateOf(rateKey) ?? { rate: 0, hours: 1, burst: 0 }
    const bucket = this.buckets.get(rateKey)
    return bucket === undefined ? burst : Math.min(burst, bucket.tokens + ((this.hour - bucket.hour) * rate) / hours)
  }

  /**
   * Who of those that ask for one rate limit has to wait, and until which hour; of the others, how many tokens are gone when it has been served. Served in order of
   * urgency as far as the tokens reach, and nobody before those that wait already and come first.
   */
  #rateLine(rateKey: string, { rate, hours }: NonNullable<Limits['rate']>, free: readonly Instance[]) {
    const waiting = this.#all()
      .filter((g) => g.status === 'throttled' && g.until !== null && g.rateKey === rateKey)
      .sort((a, b) => (a.until?.at ?? 0) - (b.until?.at ?? 0) || byUrgency(a, b))
    const first = waiting[0]
    const last = Math.max(this.hour, waiting.at(-1)?.until?.hour ?? 0)
    const tokens = this.#tokens(rateKey)
    const wait = (missing: number): number => (rate === 0 ? Number.POSITIVE_INFINITY : (missing * hours) / rate)
    const denied = new Map<Nth, number>()
    const reaches = new Map<Nth, number>()
    let reach = 0
    let behind = 0
    for (const g of free) {
      if (g.rateKey !== rateKey) continue
      if (first !== undefined && byUrgency(first, g) < 0) {
        behind += g.weight
        denied.set(g.nth, last + wait(behind))
        continue
      }
      reach += g.weight
      if (reach <= tokens) reaches.set(g.nth, reach)
      else denied.set(g.nth, this.hour + wait(reach - tokens))
    }
    return { hours: denied, reaches }
  }

  /** Of those who wait for a key, as many as it has room for become runnable, those in front. */
  #wake(keys: readonly string[]): undefined {
    for (const key of new Set(keys)) {
      const capacity = this.#capacityOf(key)
      const room = capacity === null ? (this.#heldSerially(key) ? 0 : 1) : Math.max(0, capacity - this.slotsHeld(key))
      const line = this.#all()
        .filter((g) => g.key === key && waitsInLine(g) && (capacity === null || g.until === null))
        .sort(byUrgency)
      for (const queue of new Set(line.map((g) => g.queue))) {
        for (const g of line.filter((other) => other.queue === queue).slice(0, room))
          if (g.status === 'throttled' && g.until === null) g.status = 'runnable'
      }
    }
    return undefined
  }

  // -- Leases -------------------------------------------------------------------------------------------------------------

  #beat(tickets: readonly Ticket[]): Answer {
    return tickets.map((ticket) => {
      const g = this.#stands(ticket)
      if (g === undefined) return 'lost'
      g.lease = this.hour + LEASE_HOURS
      return g.cancelAsked === null ? 'held' : 'cancelling'
    })
  }

  #release(tickets: readonly Ticket[], wakes: boolean): Answer {
    const released = tickets.flatMap((ticket) => {
      const g = this.#stands(ticket)
      return g === undefined || this.#isStaged(g) ? [] : [g]
    })
    for (const g of released) this.#leaveClaim(g, 'runnable')
    if (wakes) this.#wakeKeysOf(released)
    return released.map(({ nth }) => nth).toSorted((a, b) => a - b)
  }

  #leaveClaim(g: Instance, status: Status): void {
    g.status = status
    g.lease = null
    g.holdsSlot = false
  }

  #reap(wakes: boolean): Answer {
    const expired = this.#all().filter((g) => g.status === 'executing' && (g.lease ?? 0) <= this.hour && !this.#isStaged(g))
    for (const g of expired) {
      this.#leaveClaim(g, 'runnable')
      if (g.cancelAsked !== null) this.#end(g, 'cancelled', 'cancelled')
      else if (g.reclaims >= MAX_RECLAIMS) this.#end(g, 'failed', 'crash_loop')
      else g.eligible = this.#now()
      g.reclaims += 1
    }
    this.#followEnds(expired)
    if (wakes) this.#wakeKeysOf(expired)
    return expired.map(({ nth, status }) => ({ nth, status }))
  }

  #wakeKeysOf(instances: readonly Instance[]): void {
    this.#wake(instances.flatMap(({ key }) => (key === null ? [] : [key])))
  }

  // -- Outcomes -----------------------------------------------------------------------------------------------------------

  #stage(answered: readonly Answered[]): Answer {
    const landed = answered.filter(({ ticket }) => {
      const g = this.#stands(ticket)
      return g !== undefined && !this.#isStaged(g)
    })
    for (const one of landed) this.outcomes.push({ answered: { ...one, goesOn: false }, turn: this.turn })
    return landed.map(({ ticket }) => ticket.instance).toSorted((a, b) => a - b)
  }

  #flush({ limit, commits, wakes }: Command & { do: 'flush' }): Answer {
    if (!commits) return undefined
    return this.#apply(
      this.outcomes.splice(0, limit).map(({ answered }) => answered),
      wakes,
    )
  }

  #apply(answered: readonly Answered[], wakes: boolean): Answer {
    const freed: string[] = []
    const moved: { g: Instance; shape: AnswerShape; ticket: Ticket }[] = []
    let removed = 0
    const standing = answered.flatMap((one) => {
      const g = this.#stands(one.ticket)
      return g === undefined ? [] : [{ ...one, g }]
    })
    for (const { ticket, shape, goesOn, g } of standing.toSorted((a, b) => a.g.nth - b.g.nth)) {
      if (shape.kind === 'done' && shape.discard && g.parent === null && !g.scope.includes('done')) {
        removed += 1
        this.#remove(g)
      } else {
        moved.push({ g, shape, ticket })
        if (this.#move(g, shape, ticket, goesOn) && (g.key === ticket.key || ticket.key === null)) continue
      }
      if (ticket.key !== null) freed.push(ticket.key)
    }
    const spawned = moved.filter(({ g }) => g.status === 'awaiting_children')
    const landed = this.#spawn(spawned)
    this.#followMoves(moved)
    for (const { g, shape } of spawned) {
      const born = landed.get(g.nth) ?? 0
      g.pending = Math.min(born, shape.joinCount ?? born)
      if (born === 0) {
        g.status = 'runnable'
        g.deadline = null
      }
    }
    if (wakes) this.#wake(freed)
    return moved.length + removed
  }

  /** Whether the same worker goes on with the next step. */
  #move(g: Instance, shape: AnswerShape, { key }: Ticket, goesOn: boolean): boolean {
    const { kind } = shape
    const ends = ENDS.has(kind)
    g.reclaims = 0
    if (kind === 'retry') g.attempt += 1
    else if (!ends) g.attempt = 0
    if (!ends) g.eligible = this.#now(kind === 'sleep' || kind === 'retry' ? shape.delay : 0)
    if (MOVES_ON.has(kind)) {
      g.step = `${kind}ed`
      g.key = shape.key
      if (g.key !== key) g.holdsSlot = false
      g.rateKey = shape.rateKey
      g.weight = shape.weight
      if (kind === 'continue_as') g.version = 2
    }
    g.error = kind === 'retry' || kind === 'fail' ? 'step' : null
    if (kind !== 'retry') g.awaits = null
    g.deadline = null
    g.pending = 0
    if (kind === 'done') this.#end(g, 'done', null)
    else if (kind === 'fail') this.#end(g, 'failed', 'step')
    else if (kind === 'cancel') this.#end(g, 'cancelled', 'step')
    else if (g.cancelAsked !== null) this.#end(g, 'cancelled', 'cancelled')
    else if (MOVES_ON.has(kind) && !this.#canBeRated(shape.rateKey, shape.weight)) this.#end(g, 'failed', 'invalid_limit')
    else if (goesOn) {
      g.epoch += 1
      g.lease = this.hour + LEASE_HOURS
      this.#ticket(g)
      return true
    } else {
      this.#leaveClaim(g, statusAfter(shape))
      if (kind === 'await_signal') g.awaits = shape.awaits
      if ((kind === 'await_signal' || kind === 'spawn') && shape.timeout !== null) g.deadline = this.hour + shape.timeout
    }
    return false
  }

  /** Children of each parent that landed. */
  #spawn(spawned: readonly { g: Instance; shape: AnswerShape }[]): Map<Nth, number> {
    const wanted = spawned.flatMap(({ g, shape }) => shape.children.map((row) => ({ row, g })))
    const landed = this.#land(sortedByKey(wanted.map(({ row }) => row)))
    const counts = new Map<Nth, number>()
    for (const row of landed) {
      const parent = wanted.find((one) => one.row === row)?.g as Instance
      this.#create(row, parent)
      counts.set(parent.nth, (counts.get(parent.nth) ?? 0) + 1)
    }
    return counts
  }

  /** What follows from outcomes, after all of them. */
  #followMoves(moved: readonly { g: Instance; shape: AnswerShape; ticket: Ticket }[]): void {
    for (const { g, shape, ticket } of moved) {
      if (['next', 'sleep', 'spawn', 'continue_as'].includes(shape.kind))
        this.signals = this.signals.filter(({ nth }) => !ticket.shown.includes(nth))
      if (g.status !== 'awaiting_signal') continue
      // It goes on at once if its inbox holds what it waits for, and its last step was not shown that.
      if (this.signals.some((s) => s.target === g.nth && g.awaits?.includes(s.name) && !ticket.shown.includes(s.nth))) this.#makeRunnable(g)
    }
    this.#followEnds(moved.map(({ g }) => g))
  }

  #end(g: Instance, status: 'done' | 'failed' | 'cancelled', error: string | null): void {
    this.#leaveClaim(g, status)
    g.error = error
    g.awaits = null
    g.deadline = null
    g.pending = 0
    g.until = null
    g.ended = this.hour
  }

  /** Inboxes go, parents count, the children of cancelled ones are to be cancelled. */
  #followEnds(instances: readonly Instance[]): void {
    const ended = instances.filter(isEnded)
    this.signals = this.signals.filter(({ target }) => !ended.some(({ nth }) => nth === target))
    for (const { parent: nth, parentEpoch } of ended) {
      const parent = nth === null ? undefined : this.instances.get(nth)
      if (parent?.status !== 'awaiting_children' || parent.epoch !== parentEpoch) continue
      parent.pending -= 1
      if (parent.pending === 0) this.#makeRunnable(parent)
    }
    for (const { nth, status } of ended) {
      if (status === 'cancelled' && !this.notes.has(nth) && this.#all().some((child) => child.parent === nth && !isEnded(child)))
        this.notes.set(nth, this.turn)
    }
  }

  #makeRunnable(g: Instance): void {
    g.status = 'runnable'
    g.eligible = this.#now()
    g.deadline = null
  }

  #remove({ nth }: Instance): void {
    this.instances.delete(nth)
    this.signals = this.signals.filter(({ target }) => target !== nth)
    for (const receipt of this.#receipts) if (receipt.startsWith(`${nth}/`)) this.#receipts.delete(receipt)
  }

  // -- Signals and control ------------------------------------------------------------------------------------------------

  #signal({ instance, name, dedupKey }: Command & { do: 'signal' }): Answer {
    const g = this.instances.get(instance)
    if (g === undefined || isEnded(g)) return 'no target'
    const receipt = `${instance}/${dedupKey}`
    if (dedupKey !== null && this.#receipts.has(receipt)) return 'duplicate'
    if (dedupKey !== null) this.#receipts.add(receipt)
    this.signals.push({ nth: this.#sent, target: instance, name })
    this.#sent += 1
    if (g.status === 'awaiting_signal' && g.awaits?.includes(name)) this.#makeRunnable(g)
    return 'delivered'
  }

  #cancel(nths: readonly Nth[], wakes: boolean): Answer {
    const live = [...new Set(nths)]
      .toSorted((a, b) => a - b)
      .flatMap((nth) => {
        const g = this.instances.get(nth)
        return g === undefined || isEnded(g) ? [] : [g]
      })
    for (const g of live) {
      g.cancelAsked ??= this.#now()
      if (g.status !== 'executing') this.#end(g, 'cancelled', 'cancelled')
    }
    this.#followEnds(live)
    if (wakes) this.#wakeKeysOf(live.filter(isEnded))
    return live.map(({ nth, status }) => ({ nth, status }))
  }

  #cancelOverdue(wakes: boolean): Answer {
    const overdue = this.#all().filter(
      (g) => g.status === 'executing' && g.cancelAsked !== null && g.cancelAsked.hour + GRACE_HOURS <= this.hour && !this.#isStaged(g),
    )
    for (const g of overdue) this.#end(g, 'cancelled', 'cancelled')
    this.#followEnds(overdue)
    if (wakes) this.#wakeKeysOf(overdue)
    return overdue.map(({ nth, status }) => ({ nth, status }))
  }

  /** One note: the children that were there when it was written. */
  #cascade(wakes: boolean): Answer {
    const [note] = [...this.notes].toSorted(([a], [b]) => a - b)
    if (note === undefined) return []
    const [parent, noted] = note
    this.notes.delete(parent)
    const children = this.#all().filter(
      (g) => g.parent === parent && g.born.turn <= noted && !isEnded(g) && (g.status !== 'executing' || g.cancelAsked === null),
    )
    return this.#cancel(
      children.map(({ nth }) => nth),
      wakes,
    )
  }

  /** Of several that want one key, the youngest gets it. */
  #retry(nths: readonly Nth[]): Answer {
    const retried: Nth[] = []
    for (const nth of [...new Set(nths)].toSorted((a, b) => b - a)) {
      const g = this.instances.get(nth)
      if (g === undefined || (g.status !== 'failed' && g.status !== 'cancelled')) continue
      if (g.correlationKey !== null && this.#all().some((o) => o !== g && o.correlationKey === g.correlationKey && occupies(o))) continue
      Object.assign(g, {
        status: 'runnable',
        attempt: 0,
        reclaims: 0,
        error: null,
        cancelAsked: null,
        parentEpoch: null,
        eligible: this.#now(),
        ended: null,
      })
      retried.push(nth)
    }
    return retried.toSorted((a, b) => a - b)
  }

  #deleteFinished(retention: number): Answer {
    const gone = this.#all().filter((g) => {
      const parent = g.parent === null ? undefined : this.instances.get(g.parent)
      return g.ended !== null && g.ended + retention <= this.hour && (parent === undefined || isEnded(parent))
    })
    for (const g of gone) this.#remove(g)
    return gone.length
  }
}

/** A live instance has its correlation key; one that has ended still has it if its scope says so. */
export const occupies = (g: Instance): boolean => !isEnded(g) || g.scope.includes(g.status)

const statusAfter = ({ kind, delay, children }: AnswerShape): Status => {
  if (kind === 'await_signal') return 'awaiting_signal'
  if (kind === 'spawn') return children.length > 0 ? 'awaiting_children' : 'runnable'
  return (kind === 'sleep' || kind === 'retry') && delay > 0 ? 'scheduled' : 'runnable'
}

/** Children land in the order of their correlation keys, those without one last. */
const sortedByKey = (rows: readonly NewRow[]): NewRow[] =>
  rows.toSorted((a, b) =>
    a.correlationKey === b.correlationKey
      ? 0
      : a.correlationKey === null
        ? 1
        : b.correlationKey === null || a.correlationKey < b.correlationKey
          ? -1
          : 1,
  )
