"""
The joint model given K, C and Sigma: evidence, prediction, leave-one-out, missing targets.

* kronecker: the algebra of complete data.
* covariances, likelihood: C and Sigma as parameters, and the noise as a GPflow likelihood.
* missing: the covariance of the observed targets, and systems with it.
* conditioning: functions and missing targets given the observed ones.
* sampling: draws of functions and of missing targets.
* fourier, functions: features of kernels, and draws that can be evaluated anywhere.
* updating: new rows given to a posterior.
* leave_one_out: every row predicted from all the other rows.
* exceedance: probabilities that tasks exceed limits. simulation: draws at many points at once.
* solved_posterior, base_posterior: what predictions need, and all predictions.
* posteriors, partly_given: the classes for complete data, missing targets, and new rows with holes.
"""
