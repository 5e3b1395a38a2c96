import { migrate, pendingMigrations } from '@holdfast/schema'
import type { Command } from 'commander'
import { addCommand, type Host } from '../command.ts'

interface MigrateOptions {
  readonly dryRun?: boolean
  readonly migrations?: string
}

export function addMigrate(program: Command, host: Host): void {
  addCommand<MigrateOptions>(program, host, {
    name: 'migrate',
    summary: 'Bring the database up to the newest migration',
    more: `Connects as an owner who may create roles, straight to the server and not through a pooling proxy. One migrator works at a time; each file is one
transaction. A file marked breaking asks that processes of the version before are stopped first.`,
    examples: ['migrate --dry-run', 'migrate --database-url postgres://owner@db:5432/holdfast'],
    configure: (command) =>
      command
        .option('--dry-run', 'only say what would be applied')
        .option('--migrations <folder>', 'folder of the migrations; default: HOLDFAST_MIGRATIONS, else those that came with this command'),
    run: async ({ session, say }, options) => {
      const target = { connectionString: session.databaseUrl(options), folder: session.migrations(options.migrations), onProgress: say }
      if (options.dryRun === true) {
        const pending = (await pendingMigrations(target)).map(({ name, compatibility }) => ({ name, compatibility }))
        const lines = pending.map(({ name, compatibility }) => `would apply ${name} (${compatibility})`)
        return { document: { pending }, text: lines.length === 0 ? 'the schema is up to date' : lines.join('\n') }
      }
      const { applied, version } = await migrate(target)
      return {
        document: { applied, version },
        text:
          applied.length === 0
            ? `the schema is up to date (version ${version})`
            : `${applied.length} applied; the schema has version ${version}`,
      }
    },
  })
}
