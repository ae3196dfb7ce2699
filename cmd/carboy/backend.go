//go:build linux

package main

import (
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/carboy/carboy"
	"github.com/carboy/carboy/internal/propose"
)

// bottleMakers lists the commands that make bottles or say what one would be. Each has
// --backend, and so have the agents' names.
var bottleMakers = []string{
	"run", "start", "agent", "resume", "work", "demo", "doctor", "escape-test", "sandbox health", "sandbox inspect",
	"gate init", "gate run", "gate trace", "gate baseline record",
	"orchestrate doctor", "orchestrate serve", "orchestrate start", "orchestrate resume",
}

// addBackend adds --backend to the commands that make bottles.
func (a *app) addBackend(root *cobra.Command) {
	for _, path := range append(slices.Clip(bottleMakers), propose.Templates()...) {
		cmd, _, err := root.Find(strings.Fields(path))
		if err != nil {
			panic(err) // the list names a command that is not there
		}
		cmd.Flags().StringVar(&a.backend, "backend", "", "what holds bottles, a `NAME`; also CARBOY_BACKEND, BOT_BOTTLE_BACKEND")
		cmd.RegisterFlagCompletionFunc("backend", cobra.FixedCompletions(carboy.Backends(), cobra.ShellCompDirectiveNoFileComp))
		run := cmd.RunE
		cmd.RunE = func(cmd *cobra.Command, args []string) error {
			a.backend = first(a.backend, a.env("CARBOY_BACKEND"), a.env("BOT_BOTTLE_BACKEND"))
			return run(cmd, args)
		}
	}
}
