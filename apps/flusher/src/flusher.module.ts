import type { RoleResources } from '@holdfast/host'
import { type DynamicModule, Module } from '@nestjs/common'
import { FlusherLoop } from './flusher.loop.ts'

@Module({})
export class FlusherModule {
  static with(resources: RoleResources, maxBatch: number): DynamicModule {
    return { module: FlusherModule, providers: [{ provide: FlusherLoop, useFactory: () => new FlusherLoop(resources, maxBatch) }] }
  }
}
