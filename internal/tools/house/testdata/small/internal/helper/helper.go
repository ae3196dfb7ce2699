// Package helper is imported by tests only.
package helper

import "time"

// Settle is a sleep in code that only tests run.
func Settle() { time.Sleep(time.Millisecond) }
