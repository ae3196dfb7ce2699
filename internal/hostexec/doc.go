// Package hostexec is the only way carboy starts a program on the host.
//
// What it promises, and what therefore must never be added to it:
//
//   - The set of programs is closed and typed ([Program]); no function turns
//     text into a program, and shells, interpreters, transfer tools and
//     process tools are never in the set. docs/decisions/0002-hostexec.md lists
//     the set and a test holds the two equal.
//   - A program is found on a fixed list of directories, never on PATH, each
//     step of the way owned by root or by us, and never beneath a workspace.
//   - Every argument is on the program's own list; an unknown option is
//     refused before anything is spawned. git never sees the configuration,
//     hooks or helpers that a repository carries.
//   - The environment starts empty. What is not on the program's list is
//     dropped and logged by name.
//   - Working directory and timeout are mandatory. Output is bounded while it
//     streams, standard input is empty unless given.
//   - When [Runner.Run] returns, no descendant is left, however it detached
//     itself, and none outlives carboy, however carboy ends. The rare process
//     that the kernel cannot kill is reported as [ErrUnkilled] and stays in the
//     register until it is gone.
//
// Start reading at [Runner.Run]; the process side is in supervisor.go.
package hostexec
