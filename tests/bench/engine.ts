// npm run bench:engine -- [--json] [--runs 3] [--only holdfast,graphile] [--trials drain,steps,idle] [--jobs 20000]: see docs/benchmarks.md.
import { parseArgs } from 'node:util'
import { BenchServer } from './bench-server.ts'
import { listOf, numberOf } from './arguments.ts'
import { benchEngine } from './engine-bench.ts'
import { goalTable, table } from './summary.ts'
import { FULL } from './trials.ts'

const { values } = parseArgs({
  options: {
    json: { type: 'boolean', default: false },
    runs: { type: 'string', default: '3' },
    only: { type: 'string' },
    trials: { type: 'string', default: 'drain,steps,idle' },
    jobs: { type: 'string', default: String(FULL.jobs) },
    machines: { type: 'string', default: String(FULL.machines) },
    samples: { type: 'string', default: String(FULL.samples) },
    'absurd-sql': { type: 'string' },
  },
})

/** The others are in the JSON: a hundred lines say less than thirty. */
const SHOWN: ReadonlySet<string> = new Set(['drain', 'steps', 'idle_p50'])

await using server = (await BenchServer.start()).stopOnSignals()
const result = await benchEngine(server, {
  ...FULL,
  only: values.only?.split(','),
  trials: listOf('--trials', values.trials, ['drain', 'steps', 'idle']),
  runs: numberOf('--runs', values.runs),
  jobs: numberOf('--jobs', values.jobs),
  machines: numberOf('--machines', values.machines),
  samples: numberOf('--samples', values.samples),
  absurdSql: values['absurd-sql'],
  progress: (text) => void process.stderr.write(`${text}\n`),
})
if (result.failed.length > 0) process.exitCode = 1
process.stdout.write(
  values.json
    ? `${JSON.stringify(result)}\n`
    : [
        table(
          ['figure', 'system', 'median', 'unit', 'runs'],
          result.figures.map(({ figure, system, median, unit, runs }) => [figure, system, median, unit, runs.join(' ')]),
        ),
        table(
          ['figure', 'system', 'to', 'ratio', 'runs'],
          result.ratios
            .filter(({ figure }) => SHOWN.has(figure))
            .map(({ figure, system, to, median, runs }) => [figure, system, to, median, runs.join(' ')]),
        ),
        goalTable(result.goals),
        ...Object.entries(result.systems).map(([name, settings]) => `${name}: ${settings}`),
        '',
      ].join('\n\n'),
)
