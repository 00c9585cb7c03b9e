"""
The joint model given K, C and Sigma: evidence, prediction, leave-one-out, missing targets.

* kronecker: the algebra of complete data.
* covariances, likelihood: C and Sigma as parameters, and the noise as a GPflow likelihood.
* missing: the covariance of the observed targets, and systems with it.
* conditioning: functions and missing targets given the observed ones.
* sampling: draws of functions and of missing targets.
* leave_one_out: every row predicted from all the other rows.
* exceedance: probabilities that tasks exceed limits. simulation: draws at many points at once.
* base_posterior, posteriors: all predictions; the classes for complete data and missing targets.

Coming next, both as methods of the base class: `condition_on(Xnew, Ynew)`, with its algebra in
kronecker and conditioning, and `sample_functions(num_samples, seed)`, with its algebra in sampling.
"""
