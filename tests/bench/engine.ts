// npm run bench:engine -- --json [--jobs 20000] [--runs 3]: drain, steps, enqueue, idle latency and cost per job, beside graphile-worker and raw SQL in
// the same run on the same server. Prints the median of the runs of each figure. Measure on a quiet machine.
import { parseArgs } from 'node:util'
import { drainGraphile, idleGraphile, stepsGraphile } from './graphile-worker.ts'
import { drainStaged, idleStaged } from './holdfast-staged.ts'
import { BenchServer, type Figure, median } from './measured.ts'
import { drainRaw } from './raw-sql.ts'

const { values } = parseArgs({
  options: {
    json: { type: 'boolean', default: false },
    jobs: { type: 'string', default: '20000' },
    machines: { type: 'string', default: '2000' },
    samples: { type: 'string', default: '200' },
    runs: { type: 'string', default: '3' },
  },
})
const [jobs, machines, samples, runs] = [values.jobs, values.machines, values.samples, values.runs].map(Number) as [
  number,
  number,
  number,
  number,
]

await using server = await BenchServer.start()
const trials: readonly (readonly [what: string, times: number, trial: () => Promise<Figure[]>])[] = [
  ['raw SQL', runs, () => drainRaw(server, jobs)],
  ['graphile-worker drain', runs, () => drainGraphile(server, jobs)],
  ['holdfast drain', runs, () => drainStaged(server, jobs, 'all', 'noop')],
  ['holdfast drain without history', runs, () => drainStaged(server, jobs, 'off', 'noop')],
  ['graphile-worker chained jobs', 1, () => stepsGraphile(server, machines)],
  ['holdfast three steps', runs, () => drainStaged(server, machines, 'all', 'three')],
  ['graphile-worker idle', 1, () => idleGraphile(server, samples)],
  ['holdfast idle', 1, () => idleStaged(server, samples)],
]
const figures: Figure[] = []
for (let run = 0; run < runs; run += 1) {
  // Runs are interleaved, so that a disturbance of the machine does not fall on one system alone.
  for (const [what, times, trial] of trials) {
    if (run >= times) continue
    if (!values.json) process.stderr.write(`run ${run + 1}: ${what}\n`)
    figures.push(...(await trial()))
  }
}
const grouped = Map.groupBy(figures, ({ figure, system, settings }) => `${figure}|${system}|${settings}`)
for (const group of grouped.values()) {
  const [first] = group
  if (first === undefined) continue
  const all = group.map(({ value }) => value)
  const line = { ...first, value: median(all), runs: all }
  if (values.json) process.stdout.write(`${JSON.stringify(line)}\n`)
  else
    process.stdout.write(
      `${line.figure.padEnd(12)} ${line.system.padEnd(18)} ${String(line.value).padStart(9)} ${line.unit.padEnd(12)} (${all.join(', ')})  ${line.settings}\n`,
    )
}
