// Package change collects what a bottle changed in a workspace and applies it
// to the host's directory.
//
// The host's workspace is the lower layer of an overlay that lives inside the
// sandbox; the host's directory is not touched while the bottle runs. After
// the run the upper layer arrives as a tar stream. The bottle controls every
// byte of that stream, so names, sizes, types and order are checked and
// bounded, and contents are stored in one file; nothing is extracted.
//
// The steps, in order:
//
//   - [Begin], before the run, records the identity of the workspace (device,
//     inode, birth time), the time of its file system and the names in it.
//   - [Collect], after the run, turns the tar stream into a [Set] by comparing
//     it with the host's directory as it is now.
//   - [Set.Diff] shows the set to a person.
//   - [Land] applies it: journaled, atomic per file.
//   - [Undo] takes landings back. [Recover] completes or rolls back a landing
//     or undo that was interrupted.
//
// Guarantees, each attacked by a test of this package:
//
//   - Nothing outside the workspace directory is written, whatever symbolic
//     links exist in it or appear while landing: every path is resolved by
//     openat2 beneath a directory descriptor whose identity was checked.
//     Kernels without openat2 are refused.
//   - Files that run code on the host merely by being there (git hooks and
//     configuration, settings of agents and editors, …) land only when they
//     are included explicitly; see [Policy].
//   - A file that the host changed meanwhile is never overwritten. One
//     conflict refuses the whole landing before anything is written.
//   - A landing that fails or is killed at any moment has, after [Recover],
//     either changed nothing or landed completely. At every moment each file
//     has either its old or its new content.
//
// Start reading at collect.go, then plan.go and apply.go.
package change
