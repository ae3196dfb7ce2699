// Package clean exceeds nothing.
package clean
