import { type DynamicModule, Module } from '@nestjs/common'

/**
 * The process shell of this role: it starts, says that it lives, reports its health and stops.
 * Forming facts comes with the memory; there are no observations yet, so nothing is formed and nothing pretends to be.
 */
@Module({})
export class FormationWorkerModule {
  static create(): DynamicModule {
    return { module: FormationWorkerModule }
  }
}
