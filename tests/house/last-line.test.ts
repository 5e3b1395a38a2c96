// `N passed, N failed` is what a gate reads: it must be the last line and be true, whatever Vitest, npm or the network did.
import { spawnSync } from 'node:child_process'
import { chmodSync, copyFileSync, mkdirSync, mkdtempSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { dirname, join } from 'node:path'
import { afterEach, expect, test } from 'vitest'

const repository = join(import.meta.dirname, '../..')
const folders: string[] = []
afterEach(() => {
  for (const folder of folders.splice(0)) rmSync(folder, { recursive: true, force: true })
})

interface Ended {
  readonly lastLine: string | undefined
  readonly status: number | null
}

/** `file` of the repository, alone with `program` on the PATH, a shell script in place of the real one. */
function ended(file: string, program: 'npm' | 'vitest', script: string): Ended {
  const root = mkdtempSync(join(tmpdir(), 'holdfast-last-line-'))
  folders.push(root)
  for (const each of [file, 'tools/run.ts']) {
    mkdirSync(dirname(join(root, each)), { recursive: true })
    copyFileSync(join(repository, each), join(root, each))
  }
  writeFileSync(join(root, 'package.json'), '{ "type": "module" }')
  mkdirSync(join(root, 'bin'))
  writeFileSync(join(root, 'bin', program), `#!/bin/sh\n${script}\n`)
  chmodSync(join(root, 'bin', program), 0o755)
  const [command, args] = file.endsWith('.ts') ? [process.execPath, [join(root, file)]] : [join(root, file), []]
  const { stdout, status } = spawnSync(command, args, { env: { PATH: `${join(root, 'bin')}:/usr/bin:/bin` }, encoding: 'utf8' })
  return { lastLine: stdout.trimEnd().split('\n').at(-1), status }
}

const report = (numbers: object): string =>
  JSON.stringify({
    numTotalTests: 3,
    numPassedTests: 3,
    numFailedTests: 0,
    numPendingTests: 0,
    numTodoTests: 0,
    numFailedTestSuites: 0,
    ...numbers,
  })
/** A Vitest that writes `numbers` where it is told and ends with `code`. */
const vitest = (numbers: object, code: number): string =>
  `for arg; do case $arg in --outputFile.json=*) echo '${report(numbers)}' > "\${arg#*=}";; esac; done; exit ${code}`

test.each([
  ['all passed', vitest({}, 0), { lastLine: '3 passed, 0 failed', status: 0 }],
  [
    'some skipped',
    vitest({ numPassedTests: 1, numPendingTests: 1, numTodoTests: 1 }, 0),
    { lastLine: '1 passed, 0 failed, 2 skipped', status: 0 },
  ],
  [
    'a test failed',
    vitest({ numPassedTests: 2, numFailedTests: 1, numFailedTestSuites: 1 }, 1),
    { lastLine: '2 passed, 1 failed', status: 1 },
  ],
  ['a file did not load', vitest({ numFailedTestSuites: 1 }, 1), { lastLine: '3 passed, 1 failed', status: 1 }],
  ['an error that nobody handled', vitest({}, 1), { lastLine: '3 passed, 1 failed', status: 1 }],
  ['no test at all', vitest({ numTotalTests: 0, numPassedTests: 0 }, 0), { lastLine: '0 passed, 1 failed', status: 1 }],
  ['Vitest ended before it could report', 'exit 0', { lastLine: '0 passed, 1 failed', status: 1 }],
  ['Vitest was killed', 'kill -9 $$', { lastLine: '0 passed, 1 failed', status: 137 }],
])('npm test, %s', (_name, script, expected) => {
  expect(ended('tools/test.ts', 'vitest', script)).toEqual(expected)
})

/** What `npm run verify` leaves behind. */
const verify = (line: string, code: number): string =>
  `echo '${line}'; mkdir -p .holdfast; echo '${line}' > .holdfast/verify.txt; exit ${code}`

test.each([
  ['all is well', verify('3 passed, 0 failed', 0), { lastLine: '3 passed, 0 failed', status: 0 }],
  ['a check failed', verify('3 passed, 1 failed', 1), { lastLine: '3 passed, 1 failed', status: 1 }],
  ['the installation failed', 'echo "npm ERR! network"; exit 7', { lastLine: '0 passed, 1 failed', status: 7 }],
  ['it ended without its line and says success', 'exit 0', { lastLine: '0 passed, 1 failed', status: 1 }],
  ['it wants to ask something', 'read answer || exit 9', { lastLine: '0 passed, 1 failed', status: 9 }],
  ['it does not know that it is in CI', '[ "$CI" = true ] || exit 8', { lastLine: '0 passed, 1 failed', status: 1 }],
])('.ci/run, %s', (_name, script, expected) => {
  expect(ended('.ci/run', 'npm', script)).toEqual(expected)
})
