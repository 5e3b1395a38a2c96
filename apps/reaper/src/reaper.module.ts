import { Reaper } from '@holdfast/engine'
import type { RoleResources } from '@holdfast/host'
import { type DynamicModule, Module } from '@nestjs/common'
import type { ReaperEnv } from './env.ts'

@Module({})
export class ReaperModule {
  static with({ db, connection, hints, logger, listen }: RoleResources, env: ReaperEnv): DynamicModule {
    const reaper = {
      provide: Reaper,
      useFactory: () =>
        new Reaper({
          db,
          connection,
          hints,
          logger,
          listen,
          reapEveryMs: env.HOLDFAST_REAP_EVERY_MS,
          cancelGraceMs: env.HOLDFAST_CANCEL_GRACE_MS,
          retentionMs: env.HOLDFAST_RETENTION_MS,
          historyDays: env.HOLDFAST_HISTORY_DAYS,
          processSilentMs: env.HOLDFAST_PROCESS_SILENT_MS,
        }),
    }
    return { module: ReaperModule, providers: [reaper] }
  }
}
