// Package orchestrate leads issues on a forge to pull requests that people merge.
//
// An issue is begun when one of its assignees is a member of the organisation, and a label
// names the agent. Then it has turns: in each one the agent works in its bottle on what people
// wrote, until a gate passes. carboy opens the pull request; comments of people who may
// write bring the agent back; the end of the pull request is the end of the bottle.
//
// Three things work together, and each can be lost without harm:
//
//   - A look (look.go) reads an issue from the forge, and keeps in the table of issues what
//     is new there: that it is begun, a prompt, the end of the pull request. What follows
//     from what was read is decided by decide in decide.go, which does no input or output.
//     Webhooks (hook.go) and polling (poll.go) only say where to look.
//   - The table, package issues, is the truth. next in life.go says what an issue needs by it.
//   - A durable workflow (life.go) does that. It is woken by looks, and lives on over
//     restarts. If the engine loses it, it begins again from the table.
//
// Everything that is sent to the forge can be repeated: a second time finds the first.
//
// Start reading at [Open], then life.go. [Bottles] is what this package needs of the machine.
package orchestrate
