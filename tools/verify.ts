// npm run verify: the whole list, checks and tests. Its last line is the tests' `N passed, N failed`; a failed check counts as one failed.
import { writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { runChecks, table, timed } from './check.ts'
import { root } from './run.ts'
import { lastLine, runTests, type TestResult } from './test.ts'

const checks = await runChecks()
const failedChecks = checks.filter(({ ok }) => !ok).length
let result: TestResult = { passed: 0, failed: 1, skipped: 0, exitCode: 1 }
const tests = await timed('tests', async () => {
  result = await runTests([])
  return result.exitCode === 0
})
const line = lastLine({ ...result, failed: result.failed + failedChecks })
process.stdout.write(`${table([...checks, tests])}\n${line}`)
process.exitCode = result.exitCode !== 0 || failedChecks > 0 ? 1 : 0
writeFileSync(join(root, '.holdfast', 'verify.txt'), line) // .ci/run sees by it that this line was printed
