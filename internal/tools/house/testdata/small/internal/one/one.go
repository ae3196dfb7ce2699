// Package one has names that others use, and names that they do not.
package one

import (
	"fmt"

	"example.com/small/internal/two/deep"
)

// Held is used: package small holds a value of it.
type Held struct {
	// Field is that which fields are counted for: its opening.
	Field string
}

// New is used.
func New() Held { return Held{deep.Name} }

// Alone is not used.
func Alone() {}

// Pair is used by its own tests only.
func Pair() (a, b int) { return 1, 2 }

// Generic is used by package deep's test.
type Generic[T any] struct{ v T }

// Get is used, of an instance.
func (g Generic[T]) Get() T { return g.v }

// Put is not used.
func (g *Generic[T]) Put(v T) { g.v = v }

// Shape is an interface, and its methods are used where it is.
type Shape interface{ Area() int }

// Square implements Shape, a Stringer, and nothing by Side.
type Square struct{ side }

type side int

// Area implements Shape by what Square embeds.
func (s side) Area() int { return int(s * s) }

// Error implements error.
func (s Square) Error() string { return "square" }

// Unwrap is called by package errors.
func (s Square) Unwrap() error { return nil }

// Format implements fmt.Formatter.
func (s Square) Format(f fmt.State, verb rune) {}

// Side is not used.
func (s Square) Side() int { return int(s.side) }

// Hidden is no method of an exported type.
func (s side) Hidden() {}
