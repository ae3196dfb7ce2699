//go:build !amd64

package kvm

import (
	"errors"
	"runtime"
)

// system has no KVM: the loop is written for amd64 alone.
type system struct{}

func (system) open() (device, error) {
	return nil, errors.New("carboy can't judge KVM on " + runtime.GOARCH)
}
