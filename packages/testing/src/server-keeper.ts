// A process that holds the embedded PostgreSQL of one test process. It tells the server's address as one line of JSON, and stops the server when its input ends: which is
// so however the test process ended, by SIGKILL too, and also where a test runner lets no exit hook run.
import { startPostgres } from '@holdfast/testbed/postgres'
import type { KeeperAnswer } from './server.ts'

const answer = (text: KeeperAnswer): void => void process.stdout.write(`${JSON.stringify(text)}\n`)

try {
  const postgres = await startPostgres()
  answer({ url: postgres.url('postgres') })
  await new Promise((resolve) => process.stdin.on('end', resolve).on('error', resolve).resume())
  await postgres.stop()
} catch (error) {
  answer({ error: error instanceof Error ? error.message : String(error) })
  process.exitCode = 1
}
