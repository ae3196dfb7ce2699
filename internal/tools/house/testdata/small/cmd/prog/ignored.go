//go:build ignore

package main

// X is for others what this file is to go: ignored when it builds.
func X() {}
