/** `a,b` of `--only a,b`; names what there is when one of them is not. */
export function listOf<Word extends string>(option: string, text: string, words: readonly Word[]): Word[] {
  return text.split(',').map((given) => {
    const word = words.find((each) => each === given.trim())
    if (word === undefined)
      throw new RangeError(`${option} takes ${words.join(', ')}, separated by commas; ${JSON.stringify(given)} is none of them`)
    return word
  })
}

export function numberOf(option: string, text: string): number {
  const number = Number(text)
  if (!Number.isInteger(number) || number < 1)
    throw new RangeError(`${option} takes a whole number of at least 1, not ${JSON.stringify(text)}`)
  return number
}
