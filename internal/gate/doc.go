// Package gate runs the checks that a catalog asks for on a change, each phase in a fresh
// sealed bottle, and writes the results to a verdict that others can verify.
//
// It guarantees:
//
//   - A gate passes only if every signal of its catalog is present and passed. A signal
//     that is missing, unknown, late or broken does not pass; nor does the zero Outcome.
//
//   - Catalog, baseline, frozen files and the list of tests come from the approved base
//     or from the user's own files, never from the change. Tests that passed on the base
//     must pass on the change as the base has them, whatever the change does to them.
//
//   - Facts come from exit codes and from the trace of the kernel inside the bottle. A
//     program's output is a claim: if it contradicts them, the signal fails.
//
//   - A cached verdict is reused only while everything that its phases were seen to use
//     is unchanged; otherwise the input that changed is named.
//
// Each kind of signal has a file, kind_*.go, that registers its name, its keys in a
// catalog, and how it is evaluated: see register. Start reading at [Catalog], then
// [Gate.Run].
package gate
