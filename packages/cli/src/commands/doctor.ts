import type { Command } from 'commander'
import { duration } from '../argument.ts'
import { addCommand, type Host } from '../command.ts'
import { examine } from '../doctor/examine.ts'
import { reportText } from '../doctor/report-text.ts'
import { ExitCodes } from '../exit-code.ts'

interface DoctorOptions {
  readonly grace?: number
  readonly lease?: number
  readonly timeout?: number
  readonly migrations?: string
}

export function addDoctor(program: Command, host: Host): void {
  addCommand<DoctorOptions>(program, host, {
    name: 'doctor',
    summary: 'Look for what is broken, stuck or slow in the database, and say what to do',
    more: `Checks every invariant, then the schema, stuck rows, queues, processes, plans, bloat, connections and settings. Changes nothing: its sessions are read-only.
Connects straight to the server, as the owner of the schema or as a login that is granted pg_read_all_data and pg_monitor. Ends with 1 when an
invariant is violated or a finding is an error.`,
    examples: ['doctor', 'doctor --json', `doctor --lease '5 min' --timeout '10 min'`],
    configure: (command) =>
      command
        .option('--grace <time>', 'how long something may wait to be healed before an invariant counts it; default 10 s', duration)
        .option('--lease <time>', 'HOLDFAST_LEASE_MS of the schedulers; default 60 s', duration)
        .option('--timeout <time>', 'longest time for one statement; default 60 s', duration)
        .option('--migrations <folder>', 'folder of the migrations; default: HOLDFAST_MIGRATIONS, else those that came with this command'),
    run: async ({ session }, options) => {
      const report = await examine({
        databaseUrl: session.databaseUrl(options),
        migrations: session.migrations(options.migrations),
        graceMs: options.grace ?? 10_000,
        leaseMs: options.lease ?? 60_000,
        timeoutMs: options.timeout ?? 60_000,
      })
      return { document: report, text: reportText(report), exitCode: report.healthy ? ExitCodes.ok : ExitCodes.refused }
    },
  })
}
