// Package small has files that use each other: a and b do, and both use c.
package small

// A is what begins the circle.
type A struct{ c *C }

// Use returns what B says.
func (a A) Use() string { return b(a) + a.c.name }
