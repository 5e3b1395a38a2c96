// npm run verify: the whole list, checks and tests. Its last line is the tests' `N passed, N failed`; a failed check counts as one failed.
import { runChecks, table } from './check.ts'
import { runTests } from './test.ts'

const startedMs = performance.now()
const finished = runChecks()
const tests = runTests([])
process.stdout.write(
  `${table([...finished, { name: 'tests', ok: tests.failed === 0, seconds: (performance.now() - startedMs) / 1_000 }])}\n`,
)
const failedChecks = finished.filter(({ ok }) => !ok).length
process.exitCode = tests.exitCode !== 0 || failedChecks > 0 ? 1 : 0
process.stdout.write(
  `${tests.passed} passed, ${tests.failed + failedChecks} failed${tests.skipped > 0 ? `, ${tests.skipped} skipped` : ''}\n`,
)
