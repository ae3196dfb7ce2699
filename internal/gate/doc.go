// Package gate proves a change before anyone trusts it: it runs what a catalog
// asks for on the change, each phase in a fresh sealed bottle, and says what was
// found in a verdict that others can check.
//
// What it promises:
//
//   - A gate passes only when every signal of its catalog is there and passed. What
//     is missing, unknown, late or broken is no pass; the zero Outcome is none.
//   - What judges (catalog, baseline, frozen files, inventory of tests) comes from
//     the approved base or from the user's own files, never from the change.
//   - What happened comes from the trace that the kernel inside took, and from exit
//     codes; what a program prints is a claim, and agrees with these or fails.
//   - A cached verdict is given only when all that its own phases were seen to use is
//     as it was; otherwise the input that changed is named.
//
// A kind of signal is one file, kind_*.go, that registers a name, what its keys in
// a catalog are, and how it judges: see [Register]. Start reading at [Catalog], then
// [Gate.Run].
package gate
