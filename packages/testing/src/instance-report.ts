import { inspect } from 'node:util'
import { isTerminal } from '@holdfast/contracts'
import type { InboxRow, InstanceRow, TransitionRow } from '@holdfast/queries'
import { durationText } from './duration-text.ts'

export type ReportedRow = Omit<InstanceRow, 'state' | 'result'> & { readonly state: unknown; readonly result: unknown }

export interface Reported {
  readonly row: ReportedRow
  readonly inbox: readonly InboxRow[]
  readonly history: readonly TransitionRow[]
  /** The machines of the test engine, as `name/version`. */
  readonly known: ReadonlySet<string>
  readonly now: Date
}

/** The last of an instance's transitions that a failure shows. */
const SHOWN = 8

/** What a person wants to know of an instance that is not where a test wanted it. */
export function reportOf({ row, inbox, history, known, now }: Reported): string {
  const { step, attempt, error, awaits, await_deadline: deadline } = row
  const line = (name: string, text: string): string => `  ${name.padEnd(9)}${text.replaceAll('\n', '\n           ')}`
  const lines = [line('step', `${step}${attempt > 0 ? `, attempt ${attempt}` : ''}`)]
  if (error !== null) lines.push(line('error', `${error.code}: ${error.message}${stackOf(error.stack)}`))
  if (row.status === 'done') lines.push(line('result', inspected(row.result)))
  lines.push(line('state', inspected(row.state)))
  if (awaits !== null && awaits.length > 0)
    lines.push(
      line(
        'awaits',
        `${awaits.join(', ')}${deadline === null ? '' : `, at most for ${durationText(deadline.getTime() - now.getTime())} more`}`,
      ),
    )
  if (row.children_pending > 0) lines.push(line('children', `${row.children_pending} have not ended`))
  if (inbox.length > 0) lines.push(line('inbox', inbox.map(({ name, payload }) => `${name} ${inspected(payload)}`).join('\n')))
  lines.push(line('history', historyOf(history)))
  const hint = hintFor(row, known, now)
  if (hint !== undefined) lines.push(line('hint', hint))
  return lines.join('\n')
}

/** The line that an error's stack adds to its message: where it was thrown. */
function stackOf(stack: string | undefined): string {
  const at = stack?.split('\n').find((each) => /^\s+at /.test(each))
  return at === undefined ? '' : `\n${at.trim()}`
}

const inspected = (value: unknown): string => inspect(value, { depth: 6, breakLength: 100, maxArrayLength: 20, maxStringLength: 500 })

function historyOf(history: readonly TransitionRow[]): string {
  if (history.length === 0) return 'no step has ended (or the machine keeps no history)'
  const left = history.length - SHOWN
  const shown = history.slice(-SHOWN).map(({ from_step, kind, to_status, to_step, error }) => {
    const to = to_step === null || to_step === from_step ? to_status : `${to_status} at ${to_step}`
    const why = (error as { message?: string } | null)?.message
    return `${from_step}: ${kind} → ${to}${why === undefined ? '' : ` (${why.split('\n', 1)[0]})`}`
  })
  return [...(left > 0 ? [`… ${left} before`] : []), ...shown].join('\n')
}

function hintFor(row: ReportedRow, known: ReadonlySet<string>, now: Date): string | undefined {
  const { status, machine, version, eligible_at: dueAt } = row
  if (!isTerminal(status) && !known.has(`${machine}/${version}`))
    return `testEngine() was not given machine ${machine} version ${version}, so nobody runs it`
  switch (status) {
    case 'scheduled':
      return `it is due in ${durationText(dueAt.getTime() - now.getTime())}; drain({ travel: true }) lets the time pass`
    case 'runnable':
      return 'it waits to be claimed: drain() runs it, unless its queue is paused or left out by drain({ queues })'
    case 'throttled':
      return 'a limit has denied it; drain({ travel: true }) lets the time pass in which a rate limit refills'
    case 'executing':
      return 'its worker has crashed; drain({ travel: true }) lets its lease run out'
    case 'awaiting_signal':
      return row.await_deadline === null
        ? 'only a signal can move it: signal(id, name, payload), then drain()'
        : 'a signal can move it, or drain({ travel: true }), which lets its deadline pass'
    case 'awaiting_children':
      return 'it waits for its children; instances({ parentId }) shows them'
    case 'done':
    case 'failed':
    case 'cancelled':
      return undefined
  }
}
