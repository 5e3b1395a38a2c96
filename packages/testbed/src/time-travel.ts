export { letPass } from './let-pass.ts'
export { fixedColumns, movedColumns } from './time-columns.ts'
