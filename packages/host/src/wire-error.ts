import { type ErrorCode, ErrorStatus } from '@holdfast/contracts'
import { HttpException } from '@nestjs/common'

/** The one shape of a refusal. */
export const errorBody = (code: ErrorCode, message: string): { error: { code: ErrorCode; message: string } } => ({
  error: { code, message },
})

/** A refusal raised where only an HttpException gets through Nest to its filter: in the body parser. */
export class WireException extends HttpException {
  constructor(code: ErrorCode, message: string) {
    super(errorBody(code, message), ErrorStatus[code])
  }
}
