// Package two uses one, and one uses deep below two: a circle of folders.
package two

import "example.com/small/internal/one"

// Shapes are those of one.
var Shapes = []one.Shape{one.Square{}}

func sum(n []int) (total int) {
	for _, x := range n {
		switch {
		case x > 0 && x < 10 || x == 12:
			total += x
		default:
			total--
		}
	}
	return total
}
