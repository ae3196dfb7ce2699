// Package change finds out what a bottle did to a workspace and takes it
// home safely.
//
// The host's workspace is the lower layer of an overlay that lives inside the
// sandbox; the host's directory is not touched while the bottle runs. After
// the run the upper layer arrives as a tar stream. The stream is the
// adversary's: every name, size, type and order in it is judged, bounded and
// stored, never extracted.
//
// The life of a change:
//
//   - [Begin], before the run: who the workspace is (device, inode, birth),
//     what time it is on its file system, and the names that exist.
//   - [Collect], after the run: the tar stream becomes a [Set], compared with
//     the host's directory as it is now.
//   - [Set.Diff]: shown to a person.
//   - [Land]: taken home, journaled, atomic per file, undoable.
//   - [Undo], [Recover].
//
// Promises, each attacked by a test of this package:
//
//   - Nothing outside the workspace directory is written, whatever symbolic
//     links exist in it or appear while landing: every path is resolved by
//     openat2 beneath a directory descriptor whose identity was checked, and
//     a kernel without openat2 is refused.
//   - What runs code on the host merely by being there (git hooks and
//     configuration, settings of agents and editors, …) lands only when asked
//     for by name; see [Policy].
//   - A file that the host changed meanwhile is never overwritten. One
//     conflict refuses the whole landing before anything is written.
//   - A landing that fails or is killed at any moment leaves, after
//     [Recover], everything as it was or everything landed; at every moment
//     each file is its old or its new self.
//
// Start reading at collect.go, then plan.go and apply.go.
package change
