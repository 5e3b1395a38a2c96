// npm run chaos -- --instances 10000 [--json]
import { parseArgs } from 'node:util'
import { complaints, runChaos } from './chaos-run.ts'

const { values } = parseArgs({ options: { instances: { type: 'string', default: '10000' }, json: { type: 'boolean', default: false } } })
const instances = Number(values.instances)
if (!Number.isInteger(instances) || instances < 1) {
  process.stderr.write(`--instances must be a whole number of at least 1, not ${values.instances}\n`)
  process.exit(2)
}
const startedMs = performance.now()
const report = await runChaos({
  instances,
  onProgress: (line) => {
    if (!values.json) process.stdout.write(`${((performance.now() - startedMs) / 1_000).toFixed(1).padStart(6)} s  ${line}\n`)
  },
})
const wrong = complaints(report)
if (values.json) process.stdout.write(`${JSON.stringify({ ...report, complaints: wrong })}\n`)
else {
  process.stdout.write(`
instances            ${report.instances}
done                 ${report.done}
ended exactly once   ${report.instances - report.notEndedOnce}
effects by key       ${report.effects}   (tries repeated because a process died: ${report.repeatedTries})
left over            ${report.leftOutcomes} outcomes, ${report.leftSignals} signals, ${report.quarantined} in quarantine
invariant violations ${report.violations.length}
killed               ${Object.entries(report.kills)
    .map(([victim, count]) => `${victim} ${count}`)
    .join(', ')}
seconds              ${report.seconds}
${wrong.length === 0 ? 'Nothing lost, nothing stuck, nothing doubled.' : wrong.map((line) => `WRONG: ${line}`).join('\n')}
`)
}
process.exitCode = wrong.length === 0 ? 0 : 1
