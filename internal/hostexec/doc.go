// Package hostexec is the only way in which carboy starts a program on the
// host.
//
// It makes these promises, and nothing that breaks one may be added:
//
//   - The set of programs is closed and typed ([Program]). No function turns text
//     into a program. Shells, interpreters, transfer tools and process tools are
//     never in the set. docs/decisions/0002-hostexec.md lists the set, and a test
//     holds the two equal.
//   - A program is found on a fixed list of directories, never on PATH. Root or
//     this user owns each step of the way, and no step lies in a workspace.
//   - Every argument is on the program's own list. An unknown option is refused
//     before anything is spawned. git never sees the configuration, hooks or
//     helpers that a repository carries.
//   - The environment starts empty. Variables that are not on the program's list
//     are dropped and logged by name.
//   - Working directory and timeout are mandatory. Output is bounded while it
//     streams. Standard input is empty unless given.
//   - When [Runner.Run] returns, no descendant is left, however it detached
//     itself, and none outlives carboy, however carboy ends. A process that the
//     kernel cannot kill is reported as [ErrUnkilled] and stays registered until
//     it is gone.
//
// Start reading at [Runner.Run]; the process side is in supervisor.go.
package hostexec
