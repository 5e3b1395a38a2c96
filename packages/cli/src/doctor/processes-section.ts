import { listProcesses } from '@holdfast/queries'
import { age } from '../answer.ts'
import { plural } from './figures.ts'
import type { Finding, SectionDefinition } from './finding.ts'

/** As long as a reaper lets a process be silent before it takes its row away (HOLDFAST_PROCESS_SILENT_MS). */
const SILENT_MS = 60_000

/** What stands still without each role. A flusher is not among the missed ones where schedulers apply their outcomes themselves; then none waits. */
const MISSED = {
  scheduler: { severity: 'warning', consequence: 'nothing runs' },
  reaper: { severity: 'warning', consequence: 'expired claims and deadlines wait' },
  flusher: { severity: 'info', consequence: 'outcomes wait, unless schedulers apply their own (HOLDFAST_FLUSH=direct)' },
} as const

/** Who says that it lives, and who has stopped saying so. */
export const processesSection: SectionDefinition = {
  name: 'processes',
  title: 'processes',
  async examine({ db }) {
    const rows = await listProcesses(db, {})
    const alive = rows.filter(({ silent_ms: silent }) => silent < SILENT_MS)
    const silent = rows
      .filter(({ silent_ms: ms }) => ms >= SILENT_MS)
      .map(
        ({ role, host, pid, silent_ms: ms }): Finding => ({
          code: 'process_silent',
          severity: 'warning',
          what: `the ${role} on ${host} (pid ${pid}) has been silent for ${age(ms)}`,
          value: ms,
          remedy:
            'it was killed, hangs, or cannot reach the database: look at its host. Its claims come back by their leases, its row goes with a reaper',
        }),
      )
    const lives = new Set(alive.map(({ role }) => role))
    // Where nothing at all is running, nobody needs to be told which role is not.
    const missing = lives.size === 0 ? [] : Object.entries(MISSED).filter(([role]) => !lives.has(role))
    return {
      findings: [
        ...silent,
        ...missing.map(
          ([role, { severity, consequence }]): Finding => ({
            code: 'role_missing',
            severity,
            what: `no ${role} says that it lives: ${consequence}`,
            value: 0,
            remedy: `start a ${role} (docs/operations/running.md)`,
          }),
        ),
      ],
      facts: [`${plural(alive.length, 'process', 'processes')} alive${lives.size > 0 ? `: ${[...lives].join(', ')}` : ''}`],
    }
  },
}
