// Who used the processors during a trial. Linux only; elsewhere the figures are left out.
import { existsSync, readdirSync, readFileSync } from 'node:fs'

/** Microseconds since each began. */
export interface CpuTime {
  readonly workers: number
  readonly postgres: number
  /** Everything else on the machine, this process not counted: what disturbs a measurement. */
  readonly others: ReadonlyMap<number, number>
}

/** A tick of /proc is 10 ms on every Linux that Node runs on. */
const TICK_US = 10_000

interface Ticks {
  readonly parent: number
  readonly own: number
  /** Of children that have ended and been waited for. */
  readonly reaped: number
}

function ticksOf(pid: number): Ticks | undefined {
  try {
    const stat = readFileSync(`/proc/${pid}/stat`, 'utf8')
    const fields = stat
      .slice(stat.lastIndexOf(')') + 2)
      .split(' ')
      .map(Number)
    const at = (index: number): number => fields[index] ?? 0
    return { parent: at(1), own: at(11) + at(12), reaped: at(13) + at(14) }
  } catch {
    return undefined // it has just ended
  }
}

const KERNEL_THREADS = 2

export function cpuTime(postmaster: number, workers: readonly number[]): CpuTime | undefined {
  if (!existsSync('/proc/self/stat')) return undefined
  let inWorkers = 0
  let inPostgres = (ticksOf(postmaster)?.own ?? 0) + (ticksOf(postmaster)?.reaped ?? 0)
  const others = new Map<number, number>()
  for (const entry of readdirSync('/proc')) {
    const pid = Number(entry)
    if (!Number.isInteger(pid) || pid === process.pid || pid === postmaster) continue
    const ticks = ticksOf(pid)
    if (ticks === undefined) continue
    if (workers.includes(pid)) inWorkers += ticks.own
    else if (ticks.parent === postmaster) inPostgres += ticks.own
    else if (ticks.parent !== KERNEL_THREADS && pid !== KERNEL_THREADS) others.set(pid, ticks.own)
  }
  return {
    workers: inWorkers * TICK_US,
    postgres: inPostgres * TICK_US,
    others: new Map([...others].map(([pid, ticks]) => [pid, ticks * TICK_US])),
  }
}

/** Microseconds that others used between two looks; a process that has come since counts from its beginning. */
export function usedByOthers(before: CpuTime, after: CpuTime): number {
  let used = 0
  for (const [pid, time] of after.others) used += time - (before.others.get(pid) ?? 0)
  return used
}
